"""Drafts for requests to the toy model: right or wrong as a test wants it, and given whether they pay or not."""

import zlib
from collections.abc import Collection

from tests.toy_runner import toy_token
from xlaserve.core.request import Request
from xlaserve.core.speculation import Speculation
from xlaserve.core.step_costs import StepCosts


class ToyProposer:
    """Foretells the toy model, but for a part of the tokens. share: of those that are right. without: ids of requests
    that it has nothing for."""

    def __init__(self, share: float, num_tokens: int, vocab_size: int, without: Collection[str] = ()):
        self._without = without
        self._share = share
        self._num_tokens = num_tokens
        self._vocab_size = vocab_size

    def propose(self, request: Request) -> list[int]:
        context = list(request.token_ids)
        luck = zlib.crc32(repr((request.request_id, len(context))).encode())
        if luck % 5 == 0 or request.request_id in self._without:
            return []
        while len(context) < len(request.token_ids) + self._num_tokens + 1:
            seed = request.seed + request.choice_index if request.params.temperature > 0 else 0
            token = toy_token(context, vocab_size=self._vocab_size, seed=seed, weights=request.weights_version)
            is_right = (luck * (len(context) + 7)) % 1009 < 1009 * self._share
            context.append(token if is_right else (token + 1) % self._vocab_size)
        return context[len(request.token_ids) :]


class FreeCosts(StepCosts):
    """Of steps that cost the same whatever their size."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        pass


class Eager(Speculation):
    """Gives all drafts that there is room for."""

    def _allot(self, candidates, num_others, room):
        room -= num_others + len(candidates)
        counts = {}
        for each in candidates:
            if count := min(len(each.proposal), room):
                counts[each.request] = count
                room -= count
        return counts


def eager(share: float, *, num_tokens: int = 4, vocab_size: int = 1000, without: Collection[str] = ()) -> Speculation:
    proposer = ToyProposer(share, num_tokens, vocab_size, without)
    return Eager(proposer, FreeCosts((4, 8, 16, 32)), num_tokens)


def counted(speculation: Speculation | None) -> tuple[int, int]:
    """Tokens of drafts, and how many were accepted."""
    assert speculation is not None
    return speculation.counts.num_tokens, sum(speculation.counts.num_accepted)
