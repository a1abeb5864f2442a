"""One step as it passes between scheduler and engine: what to compute, and what came back. Plain data, no device.

A class with slots where there is one per row: it is made in half the time of a named tuple.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from xlaserve.core.outputs import TokenLogprobs
from xlaserve.core.reading import READING_KINDS, Reading, ReadResult
from xlaserve.core.request import Request


@dataclass(slots=True)
class ScheduledRow:
    """One request's part of a step: `num_tokens` tokens from position `start` on, and drafts of those after them."""

    request: Request
    row: int
    start: int
    num_tokens: int
    token_ids: tuple[int, ...] | None  # None: the one token is still in flight; the device has it in its row
    samples: bool  # the known tokens end here: the token at `start + num_tokens` is sampled
    drafts: tuple[int, ...] = ()  # guesses of that token and the next ones: what follows each is sampled, too

    @property
    def position(self) -> int:
        """Of the token to come."""
        return self.start + self.num_tokens


@dataclass(slots=True)
class ScheduledSample:
    """The first token of a fork: `row`'s last hidden state in this step gives the request's token at `position`.

    The request has a row of its own from here on.
    """

    request: Request
    row: int
    position: int
    drafts: tuple[int, ...] = ()  # none


@dataclass(slots=True)
class ScheduledReading:
    """The positions of a request's prompt whose hidden states feed a head in this step; there may be none left."""

    request: Request
    row: int
    reading: Reading
    positions: range


@dataclass(slots=True)
class BlockMoves:
    """Whole blocks brought where they are needed: all restores, then the copies in order."""

    restores: list[tuple[int, int, int]] = field(default_factory=list)  # (group, block, host slot)
    copies: list[tuple[int, int, int]] = field(default_factory=list)  # (group, source, destination)


@dataclass
class SchedulerOutput:
    """One step. `rows` ascend by row; the sampled tokens come back in the order of `samples`, of each the token at its
    position, then one for each draft."""

    weights_version: int = 0  # of all its rows
    rows: list[ScheduledRow] = field(default_factory=list)
    samples: list[ScheduledRow | ScheduledSample] = field(default_factory=list)
    readings: list[ScheduledReading] = field(default_factory=list)  # in their order the results come back
    num_outputs: int = 0  # hidden states wanted, at most: one per token that is sampled, one per position read
    admitted: list[Request] = field(default_factory=list)  # took a row in this step; their tables are new as a whole
    table_deltas: list[tuple[int, int, int, int]] = field(default_factory=list)  # (group, row, column, block), others
    offloads: list[tuple[int, int, int]] = field(default_factory=list)  # (group, block, host slot), before all else
    moves: list[BlockMoves] = field(default_factory=list)  # then these in order, before anything is written
    preempted: list[Request] = field(default_factory=list)
    num_tokens: int = 0  # drafts included

    def read(self, request: Request, reading: Reading, start: int, end: int) -> None:
        """Has read what is left to be read of the request's tokens from position `start` to `end`."""
        positions = reading.take(start, end)
        if positions or not request.samples:  # who samples nothing waits for its last step
            self.readings.append(ScheduledReading(request, request.row, reading, positions))
            self.num_outputs += len(positions)

    def readings_of(self, kind: type[Reading]) -> list[ScheduledReading]:
        """Those that read something in this step."""
        return [each for each in self.readings if isinstance(each.reading, kind) and each.positions]

    def receive_readings(self, results: Sequence[ReadResult]) -> set[Request]:
        """Gives the results, in the order of READING_KINDS, to whom they are for; returns those of not finite ones.

        Who has ended meanwhile may share its reading with others: it receives as well.
        """
        failed, found = set(), iter(results)
        for kind in READING_KINDS:
            if readings := self.readings_of(kind):
                result, index = next(found), 0
                for each in readings:
                    count = len(each.positions)
                    if not each.reading.receive(result, index, count):
                        failed.add(each.request)
                    index += each.reading.num_entries(count)
        return failed

    def move(self, restores: Sequence[tuple[int, int, int]], copies: Sequence[tuple[int, int, int]]) -> None:
        """Adds restores, and copies that come after them.

        A copy may read a free block which a request that starts later in the same step gets, to restore something into:
        so restores never come before copies that were ordered first.
        """
        if not self.moves or (restores and self.moves[-1].copies):
            self.moves.append(BlockMoves())
        self.moves[-1].restores += restores
        self.moves[-1].copies += copies


class StepResult(Protocol):
    """What the device sent back, one entry per row that sampled (`runner.commands.SampleResult`)."""

    @property
    def tokens(self) -> np.ndarray: ...  # int [n]; -1: none was allowed
    @property
    def ok(self) -> np.ndarray: ...  # bool [n]
    @property
    def logprobs(self) -> np.ndarray: ...  # float [n]
    @property
    def top_ids(self) -> np.ndarray: ...  # int [n, k]
    @property
    def top_logprobs(self) -> np.ndarray: ...  # float [n, k]


def logprobs_of(request: Request, result: StepResult, entries: range) -> tuple[TokenLogprobs, ...] | None:
    """These entries as the request asked for them: None when it did not, else as many alternatives as it named."""
    count = request.params.logprobs
    if count is None:
        return None
    return tuple(
        TokenLogprobs(
            float(result.logprobs[index]),
            tuple(
                zip(result.top_ids[index, :count].tolist(), result.top_logprobs[index, :count].tolist(), strict=True)
            ),
        )
        for index in entries
    )
