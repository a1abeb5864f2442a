"""Who gets drafts in a step, and how many: as many as pay at the present load.

A request with drafts is not scheduled while its token is in flight: what it goes on with depends on how many of them
are right. So a request that is to get some is held back for one step first, until its last token is known. Those
without drafts go on meanwhile, a step ahead of the host as ever; where there are none all wait for each other, to share
steps.

What pays is reckoned, not tried: every proposal is compared with what came, drafts or not, which tells how often the
request's are right; and the steps tell what they take, by size. Drafts in the padding of a body cost next to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from xlaserve.core.request import Request
from xlaserve.core.step_costs import StepCosts

SURE = 0.99  # no proposal is more likely to be right than that
REMEMBERED = 32  # proposals, after which the older half counts half
WAITING_COST = 1.1  # of a step before which the device waits for the host
LEAST_GAIN = 1.03  # less is within what steps vary by


class Proposer(Protocol):
    def propose(self, request: Request) -> list[int]:
        """Tokens that may come after those that have come back, the likeliest; none where nothing is likely.

        One of them may be in flight. Called once a step for each request that decodes.
        """
        ...


@dataclass
class DraftCounts:
    """Since the start, of drafts that were verified."""

    num_drafts: int = 0  # runs of drafts: of one request in one step
    num_tokens: int = 0  # in them
    num_accepted: list[int] = field(default_factory=list)  # by their place in the run

    def add(self, num_tokens: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_tokens += num_tokens
        for place in range(num_accepted):
            self.num_accepted[place] += 1


@dataclass
class _Record:
    """How often proposals for one request were right."""

    tested: float = 2.0  # tokens; half right, until more is known
    right: float = 1.0
    position: int = 0  # of the first token of
    proposal: Sequence[int] = ()  # the last one

    def compare(self, token_ids: Sequence[int]) -> None:
        """Counts what has come since, up to the first token that the proposal has wrong."""
        for place, guess in enumerate(self.proposal[: len(token_ids) - self.position], self.position):
            self.tested += 1
            if guess != token_ids[place]:
                break
            self.right += 1
        if self.tested > REMEMBERED:
            self.tested /= 2
            self.right /= 2


class _Candidate(NamedTuple):
    request: Request
    proposal: Sequence[int]  # what may be drafts, beyond what is in flight
    chance: float  # of each, if those before it are right

    @property
    def expected(self) -> float:
        """How many of them are right."""
        return self.chance * (1 - self.chance ** len(self.proposal)) / (1 - self.chance)


class Plan(NamedTuple):
    drafts: dict[Request, tuple[int, ...]]
    held: set[Request]  # those that are not scheduled in this step


NO_PLAN = Plan({}, set())


class Speculation:
    """num_tokens: drafts of a request in a step, at most. costs: somebody has to tell it what steps take."""

    def __init__(self, proposer: Proposer, costs: StepCosts, num_tokens: int):
        self.costs = costs
        self.counts = DraftCounts(num_accepted=[0] * num_tokens)
        self._proposer = proposer
        self._num_tokens = num_tokens
        self._records: WeakKeyDictionary[Request, _Record] = WeakKeyDictionary()

    def plan(self, running: Sequence[tuple[Request, int]], room: int) -> Plan:
        """running: each with its new tokens, in the policy's order. room: tokens of the step, and outputs, at most."""
        candidates: list[_Candidate] = []
        verified, num_others = set(), 0
        for request, num_new_tokens in running:
            if request.num_drafts:
                verified.add(request)
            elif num_new_tokens == 1 and (candidate := self._candidate(request)):
                candidates.append(candidate)
            else:
                num_others += num_new_tokens
        counts = self._allot(candidates, num_others, room) if candidates else {}
        if not counts:
            return Plan({}, verified) if verified else NO_PLAN
        if num_others:
            held = {each.request for each in candidates if each.request in counts and each.request.num_in_flight}
        elif verified or any(each.request.num_in_flight for each in candidates):
            return Plan({}, verified.union(each.request for each in candidates))
        else:
            held = set()
        drafts = {
            each.request: tuple(each.proposal[: counts[each.request]])
            for each in candidates
            if each.request in counts and each.request not in held
        }
        return Plan(drafts, held | verified)

    def _candidate(self, request: Request) -> _Candidate | None:
        num_known, num_in_flight = len(request.token_ids), request.num_in_flight
        if num_known + num_in_flight == request.num_prompt_tokens:
            return None  # nothing has been sampled yet
        record = self._records.get(request)
        if record is None:
            record = self._records[request] = _Record()
        record.compare(request.token_ids)
        record.position, record.proposal = num_known, self._proposer.propose(request)
        room = request.max_total_tokens - num_known - num_in_flight - 1  # one more is sampled after the last draft
        proposal = record.proposal[num_in_flight:][: min(room, self._num_tokens)] if room > 0 else ()
        return _Candidate(request, proposal, min(SURE, record.right / record.tested)) if proposal else None

    def _allot(self, candidates: list[_Candidate], num_others: int, room: int) -> dict[Request, int]:
        """How many drafts each gets that gets any: those likeliest to be right, as many as make for the most tokens per
        second. Where others go on, who waits for the host gets a step in two only, and loses a token by it."""
        lost = 1.0 if num_others else 0.0
        num_rows = num_others + len(candidates)
        chances = sorted(
            (
                (each.chance**place, -place, index)
                for index, each in enumerate(candidates)
                if each.expected > lost
                for place in range(1, len(each.proposal) + 1)
            ),
            reverse=True,
        )
        seconds, own_size = self.costs.seconds(), self.costs.size_of(num_rows)
        best, best_rate = 0, LEAST_GAIN * num_rows / seconds[own_size]
        gain, num_drafts, owners = 0.0, 0, set()
        for size in (size for size in seconds if size >= own_size):
            while num_drafts < len(chances) and num_rows + num_drafts < min(size, room):
                chance, _, index = chances[num_drafts]
                gain += chance - (lost if index not in owners else 0.0)
                owners.add(index)
                num_drafts += 1
            rate = (num_rows + gain) / (WAITING_COST * seconds[size])
            if rate > best_rate:
                best, best_rate = num_drafts, rate
        counts: dict[Request, int] = {}
        for _, _, index in chances[:best]:
            counts[candidates[index].request] = counts.get(candidates[index].request, 0) + 1
        return counts
