"""One request as the scheduler sees it: token ids, two clocks, and its place in the pool and on the device."""

import enum
import time
from dataclasses import dataclass, field, replace

from xlaserve.core.constraint import Constraint
from xlaserve.core.outputs import FinishReason
from xlaserve.core.reading import Reading
from xlaserve.sampling_params import SamplingParams


class RequestStatus(enum.Enum):
    WAITING = "waiting"  # also after a preemption
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True, weakref_slot=True)  # identity: a request is compared as itself, also when ids repeat
class Request:
    """Two clocks: `num_computed_tokens` counts what has been *launched*, `token_ids` what has *come back*.

    The second lags: `num_in_flight` sampled tokens are still on the device, their ids unknown to the host.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_total_tokens: int  # prompt + output at most: min(prompt + max_tokens, max_model_len, what the pool holds)
    stop_ids: frozenset[int]  # EOS (unless ignored) and the request's stop_token_ids
    seed: int  # resolved: the request's, or drawn for it
    eos_ids: frozenset[int] = frozenset()  # the part of stop_ids that is EOS: reported without a stop_reason
    choice_index: int = 0  # which of the answers to one prompt; names its random numbers
    forbidden_ids: tuple[int, ...] = ()  # tokens that are never sampled
    constraint: Constraint | None = None  # what rules its next token, as far as tokens have come back
    reading: Reading | None = None  # what is wanted of the prompt; always there where nothing is sampled
    forks: list["Request"] = field(default_factory=list)  # further answers, which begin once the prompt is computed
    keeps_rows: int = 0  # for requests that will continue this one, the first step of a beam search: so many at a time
    continues: "Request | None" = None  # such a first step, whose turn this one goes on with
    cache_salt: str = ""  # blocks are shared only among requests of one salt,
    adapter: str = ""  # one adapter: an identity that another loading of the same name does not have,
    weights_version: int = 0  # and one set of weights, those that compute it
    priority: int = 0  # lower is earlier, where the policy heeds it
    tenant: str = ""
    deadline: float | None = None  # time.monotonic() at which it ends with what it has by then

    arrival_time: float = field(default_factory=time.monotonic)
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    token_ids: list[int] = field(init=False)  # prompt + output that has come back
    num_computed_tokens: int = 0
    num_in_flight: int = 0
    num_drafts: int = 0  # guesses of what comes next, in flight: how many are right the host has to know first
    num_served_tokens: int = 0  # the most that were ever computed, where the policy charges for them
    num_preemptions: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in shared blocks when it was first scheduled
    order: tuple[int, int] = (-1, 0)  # its place among all requests; the policy numbers them
    row: int = -1  # place in the device state while running
    block_tables: list[list[int]] = field(default_factory=list)  # per layer group, while running; empty otherwise
    num_published_blocks: int = 0  # from the start, while running
    num_own_slots: int = 0  # tokens that its blocks have room for, if nobody shares the last of them; else 0
    prefix_keys: list[bytes] = field(default_factory=list)  # of its first 0, 1, 2 ... blocks, as far as was needed

    # time.monotonic() of what has happened so far. The scheduler sets the first, whoever delivers the outputs the rest.
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_time: float | None = None

    def __post_init__(self):
        self.token_ids = list(self.prompt_ids)

    def add_fork(self, request_id: str, choice_index: int) -> "Request":
        """A further answer to the same prompt; before the request is added anywhere."""
        fork = replace(
            self,
            request_id=request_id,
            choice_index=choice_index,
            constraint=None if self.constraint is None else self.constraint.copy(),
            forks=[],
            block_tables=[],
            prefix_keys=[],
        )
        self.forks.append(fork)
        return fork

    def use_weights(self, version: int) -> None:
        """Other weights compute it from now on, and its forks that have not begun: nothing of it may be launched.

        A prompt is read by one set of weights, that of the first token.
        """
        for each in (self, *self.forks):
            each.weights_version = version
            each.prefix_keys.clear()
        if self.reading is not None and not self.num_output_tokens:
            self.reading.begin_again()

    @property
    def has_begun(self) -> bool:
        """Whether it, or what it continues, was computed in some step."""
        return self.first_scheduled_time is not None or self.continues is not None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """Known to exist, in flight included."""
        return len(self.token_ids) + self.num_in_flight

    @property
    def num_new_tokens(self) -> int:
        """To be computed before the next one can be sampled; 0 when there is to be no next one.

        All of a prompt that is only read.
        """
        num_tokens = len(self.token_ids) + self.num_in_flight
        if num_tokens < self.max_total_tokens or num_tokens == len(self.prompt_ids):
            return num_tokens - self.num_computed_tokens
        return 0

    @property
    def samples(self) -> bool:
        """False: the prompt is only read."""
        return self.max_total_tokens > len(self.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        """That have come back."""
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED
