"""One step as it passes between scheduler and engine: what to compute, and what came back. Plain data, no device."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from xlaserve.core.request import Request


class ScheduledRow(NamedTuple):
    """One request's part of a step: `num_tokens` tokens from position `start` on."""

    request: Request
    row: int
    start: int
    num_tokens: int
    token_ids: tuple[int, ...] | None  # None: the one token is still in flight; the device has it in its row
    samples: bool  # the known tokens end here: the token at `start + num_tokens` is sampled


class ScheduledSample(NamedTuple):
    """One token to come: `row`'s last hidden state in this step gives the request's token at `position`.

    A request that forks has a row of its own from here on, and this step's hidden state from where it began.
    """

    request: Request
    row: int
    position: int


@dataclass
class SchedulerOutput:
    """One step. `rows` ascend by row; the sampled tokens come back in the order of `samples`."""

    rows: list[ScheduledRow] = field(default_factory=list)
    samples: list[ScheduledSample] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)  # took a row in this step; their tables are new as a whole
    table_deltas: list[tuple[int, int, int, int]] = field(default_factory=list)  # (group, row, column, block), others
    copies: list[tuple[int, int, int]] = field(default_factory=list)  # (group, source, destination) blocks, in order
    preempted: list[Request] = field(default_factory=list)
    num_tokens: int = 0


class StepResult(Protocol):
    """What the device sent back, one entry per row that sampled (`runner.commands.SampleResult`)."""

    @property
    def tokens(self) -> np.ndarray: ...  # int [n]
    @property
    def ok(self) -> np.ndarray: ...  # bool [n]
    @property
    def logprobs(self) -> np.ndarray: ...  # float [n]
    @property
    def top_ids(self) -> np.ndarray: ...  # int [n, k]
    @property
    def top_logprobs(self) -> np.ndarray: ...  # float [n, k]
