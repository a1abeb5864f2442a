"""The orders that reach the runner: ordered, serialisable, plain ints and numpy arrays. Nothing else reaches it.

Rows are places in the device state, 0 <= row < max_num_seqs. All commands of a step are executed in the order given.
What a step has many of is a named tuple: it is made three times as fast as a frozen dataclass.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from xlaserve.runner.buckets import BucketUse

Result = TypeVar("Result", covariant=True)

NO_DRAFT = -1


@dataclass(frozen=True)
class LogitRules:
    """What a request asks of its logits before a token is drawn. The defaults ask for nothing.

    prompt_ids and output_ids count for the penalties: presence and frequency see the output only. The tokens sampled
    from here on are counted by the device.
    """

    bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit)
    allowed: tuple[int, ...] | None = None  # tokens, None: all
    forbidden: tuple[int, ...] = ()  # tokens
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()  # not to be sampled
    first_stop: int = 0  # before this position


@dataclass(frozen=True)
class ResetRow:
    """Gives `row` to a request: its sampling parameters and the whole of its block tables so far."""

    row: int
    block_tables: tuple[tuple[int, ...], ...]  # per layer group
    temperature: float
    top_k: int  # 0 = off
    top_p: float
    seed: int  # any 64-bit int
    choice_index: int = 0
    min_p: float = 0.0  # 0 = off
    rules: LogitRules | None = None


@dataclass(frozen=True)
class CopyBlocks:
    """Copies whole blocks within a group's pools, one after the other: a source may be a later copy's destination."""

    copies: tuple[tuple[int, int, int], ...]  # (group, source, destination)


@dataclass(frozen=True)
class OffloadBlocks:
    """Copies blocks, as the commands before this one leave them, to slots of host memory.

    They are there once the future of the next Sample has given its result. No slot is named twice until then.
    """

    blocks: tuple[tuple[int, int, int], ...]  # (group, block, host slot)


@dataclass(frozen=True)
class RestoreBlocks:
    """Copies from slots of host memory, which have arrived, to blocks; in order, should a block be named twice."""

    blocks: tuple[tuple[int, int, int], ...]  # (group, block, host slot)


class RowTokens(NamedTuple):
    """The tokens of one row in a Body: `num_tokens` from position `start` on.

    `token_ids` of None means one token: the row's last sampled one, which only the device knows.
    """

    row: int
    start: int
    num_tokens: int
    token_ids: tuple[int, ...] | None


@dataclass(frozen=True)
class Body:
    """Computes hidden states and KV of `rows`, ascending; `outputs` are the tokens that feed a head.

    They are counted from the step's first: those of the first row, then those of the second ...
    """

    rows: tuple[RowTokens, ...]
    table_deltas: tuple[tuple[int, int, int, int], ...]  # (group, row, column, block), applied before the body
    outputs: tuple[int, ...]
    weights_version: int = 0  # the weights that compute it, and what follows it


@dataclass(frozen=True)
class PromptLogprobs:
    """What the model makes of tokens that are known: each of `next_ids` follows the token of that hidden row."""

    hidden_rows: tuple[int, ...]  # indices into the last Body's outputs
    next_ids: tuple[int, ...]


class SampleRow(NamedTuple):
    """One token to be sampled. A request row with drafts has several, one after another by position.

    Such a one counts if all drafts up to it are what was sampled in their places: what comes after another one was
    computed of a text that is not the request's.
    """

    hidden_row: int  # index into the last Body's outputs; several rows may share one
    row: int  # the request row: parameters, and where the token is remembered
    position: int  # of the token being sampled, counted from the prompt's first: names its random number
    draft: int = NO_DRAFT  # what the Body had at the position before, if that is a draft


@dataclass(frozen=True)
class Pool:
    """Sums hidden states of the last Body."""

    hidden_rows: tuple[tuple[int, int], ...]  # of each sum: the first of its outputs, and how many; none is in two


@dataclass(frozen=True)
class Sample:
    """Follows every Body, and what else is made of its outputs.

    Without `rows` (no prompt ends in this step) its future tells of the body's end.
    """

    rows: tuple[SampleRow, ...]
    want_logprobs: bool  # some row asks for alternatives; others cost nothing
    masks: tuple[tuple[int, np.ndarray], ...] = ()  # (index into rows, int32 [ceil(V / 32)]): bits of allowed tokens


@dataclass(frozen=True)
class DropWeights:
    """No Body names them any more. What is under way is not touched."""

    version: int


@dataclass(frozen=True)
class Sleep:
    """No Body comes until Wake. Level 1: weights go to host memory; 2: they are dropped, and the device's state too."""

    level: int


@dataclass(frozen=True)
class Wake:
    """All is on the device again; after level 2 the state is empty, and weights are there that were added since."""


Command = (
    ResetRow | OffloadBlocks | RestoreBlocks | CopyBlocks | Body | PromptLogprobs | Pool | Sample | DropWeights
    | Sleep | Wake
)  # fmt: skip


@dataclass(frozen=True)
class SampleResult:
    """Host arrays, one entry per SampleRow."""

    tokens: np.ndarray  # int32 [n]; -1: no token was allowed
    ok: np.ndarray  # bool [n]; False: the logits were not finite
    logprobs: np.ndarray  # float32 [n], of the sampled token, raw unless the head was made to give processed ones
    top_ids: np.ndarray  # int32 [n, MAX_LOGPROBS]; zeros unless want_logprobs
    top_logprobs: np.ndarray  # float32 [n, MAX_LOGPROBS]


@dataclass(frozen=True)
class PromptLogprobsResult:
    """Host arrays, one entry per hidden row asked for."""

    ok: np.ndarray  # bool [n]; False: the logits were not finite
    logprobs: np.ndarray  # float32 [n], of the next id
    ranks: np.ndarray  # int32 [n], of the next id; 1: none is likelier
    top_ids: np.ndarray  # int32 [n, MAX_LOGPROBS]
    top_logprobs: np.ndarray  # float32 [n, MAX_LOGPROBS]; -inf where the vocabulary has no more


@dataclass(frozen=True)
class PoolResult:
    """Host array."""

    sums: np.ndarray  # float64 [n, D], in the order asked for


class StepFuture(Protocol[Result]):
    def result(self) -> Result:
        """Waits for the device and returns what the command was for; raises what the step raised."""
        ...


class Runner(Protocol):
    bucket_use: BucketUse

    def execute(self, command: Command) -> StepFuture[Any] | None:
        """Launches a command without waiting for it. Those with a result return its future: Sample a SampleResult,
        PromptLogprobs a PromptLogprobsResult, Pool a PoolResult."""
        ...

    def rebuild(self) -> None:
        """Makes the device state anew, empty, after a step has failed. Host slots keep what has arrived."""
        ...
