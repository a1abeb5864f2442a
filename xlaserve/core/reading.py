"""What a request wants of its prompt beside the next token: the logprobs of its tokens, or a pooled hidden state.

A prompt is read position by position: each hidden state feeds a head once, in whatever step it is computed first.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xlaserve.sampling_params import PoolingParams, SamplingParams

ReadResult = Any  # what a head sends back: `runner.commands.PromptLogprobsResult` or `PoolResult`


@dataclass(frozen=True)
class PromptScores:
    """What the model makes of each prompt token but the first: n - 1 entries for n tokens. Raw, as all logprobs."""

    logprobs: np.ndarray  # float32 [n - 1]
    ranks: np.ndarray  # int32 [n - 1], 1 for the likeliest token
    top_ids: np.ndarray  # int32 [n - 1, k], best first; as many as were asked for
    top_logprobs: np.ndarray  # float32 [n - 1, k]


@dataclass(frozen=True)
class Pooled:
    """The prompt's hidden states after the final norm, pooled: not normalised."""

    embedding: np.ndarray  # float32 [D]


PromptRead = PromptScores | Pooled


@dataclass(eq=False)
class Reading:
    """Wants nothing of the prompt but that it is computed; the base of those that do.

    Positions from `next` to `end` are read in order. Forks share a reading: whoever computes a position first reads it.
    Two clocks, as a request has: `next` counts what has been launched, `num_received` what has come back.
    """

    next: int = 0  # the first position that has not been read
    end: int = 0
    num_received: int = 0

    def __post_init__(self):
        self._first = self.next

    @property
    def num_left(self) -> int:
        return self.end - self.next

    @property
    def is_complete(self) -> bool:
        return self._first + self.num_received == self.end

    def longest_chunk(self, start: int, num_outputs: int) -> int:
        """Tokens from position `start` on that a step may compute, whose body has `num_outputs` >= 1 places left.

        One of them is enough for what comes after the last position: the next token is sampled from it.
        """
        return max(0, self.next - start) + num_outputs

    def take(self, start: int, end: int) -> range:
        """The positions to be read of a chunk from `start` to `end`: they count as launched from now on."""
        assert start <= self.next or not self.num_left, "a position was passed unread"
        taken = range(self.next, max(self.next, min(end, self.end)))
        self.next = taken.stop
        return taken

    def restart(self) -> None:
        """What was launched and has not come back is lost."""
        self.next = self._first + self.num_received

    def begin_again(self) -> None:
        """What has come back is of no use any more; nothing is in flight."""
        self.next = self._first
        self.num_received = 0

    def receive(self, result: ReadResult, index: int, count: int) -> bool:
        """Takes what a head made of `count` positions, its entries from `index` on; false if it is not finite."""
        raise NotImplementedError

    @staticmethod
    def num_entries(count: int) -> int:
        """How many entries of a head's result are for `count` positions."""
        return count

    def outcome(self) -> PromptRead | None:
        """All that was asked for; once complete."""
        return None


@dataclass(eq=False)
class Scoring(Reading):
    """Wants PromptScores with `num_top` alternatives each."""

    num_top: int = 0
    _parts: list[PromptScores] = field(default_factory=list)

    def begin_again(self) -> None:
        super().begin_again()
        self._parts.clear()

    def receive(self, result: ReadResult, index: int, count: int) -> bool:
        mine, top = slice(index, index + count), slice(self.num_top)
        part = PromptScores(
            result.logprobs[mine], result.ranks[mine], result.top_ids[mine, top], result.top_logprobs[mine, top]
        )
        self._parts.append(part)
        self.num_received += count
        return bool(result.ok[mine].all())

    def outcome(self) -> PromptScores:
        assert self.is_complete
        none, no_top = np.zeros(0), np.zeros((0, self.num_top))  # for a prompt of one token
        floats, ints = np.float32, np.int32
        parts = [PromptScores(none, none, no_top, no_top), *self._parts]
        types = {"logprobs": floats, "ranks": ints, "top_ids": ints, "top_logprobs": floats}
        return PromptScores(
            **{
                name: np.concatenate([getattr(part, name) for part in parts], dtype=t, casting="unsafe")
                for name, t in types.items()
            }
        )


@dataclass(eq=False)
class Pooling(Reading):
    """Wants the mean of the hidden states at its positions, one of them or all."""

    _sum: np.ndarray | None = None  # float64 [D]

    def begin_again(self) -> None:
        super().begin_again()
        self._sum = None

    def receive(self, result: ReadResult, index: int, count: int) -> bool:
        part = result.sums[index]
        self._sum = part if self._sum is None else self._sum + part
        self.num_received += count
        return bool(np.isfinite(part).all())

    @staticmethod
    def num_entries(count: int) -> int:
        return 1

    def outcome(self) -> Pooled:
        assert self.is_complete
        assert self._sum is not None
        return Pooled((self._sum / self.num_received).astype(np.float32))


READING_KINDS = (Scoring, Pooling)  # those that a head serves; of a step, in this order


def make_reading(num_prompt_tokens: int, params: SamplingParams | PoolingParams) -> Reading | None:
    """None: nothing is wanted of the prompt but the next token."""
    if isinstance(params, PoolingParams):
        first = num_prompt_tokens - 1 if params.pooling == "last" else 0
        return Pooling(first, 1 if params.pooling == "cls" else num_prompt_tokens)
    if params.prompt_logprobs is not None:  # each position but the last tells of the token after it
        return Scoring(0, num_prompt_tokens - 1, num_top=params.prompt_logprobs)
    return Reading() if params.max_tokens == 0 else None
