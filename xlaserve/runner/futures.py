"""What is under way on the device: futures of the commands that have a result."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from jax import Array

from xlaserve.runner.commands import PoolResult, PromptLogprobsResult, SampleResult
from xlaserve.runner.heads.prompt_logprobs import PromptLogprobsOutput
from xlaserve.runner.heads.sample import SampleOutput
from xlaserve.runner.host_blocks import Arrival
from xlaserve.sampling_params import MAX_LOGPROBS


@cache
def _no_logprobs(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logprobs, top ids and top logprobs, the same zeros each time: while numpy makes some, other threads have Python's
    lock, and a step would wait for it.
    """
    return np.zeros(n, np.float32), np.zeros((n, MAX_LOGPROBS), np.int32), np.zeros((n, MAX_LOGPROBS), np.float32)


@dataclass
class BodyFuture:
    """A body under way that feeds no head."""

    hidden: Array
    arrivals: list[Arrival]  # on their way since the step began

    def result(self) -> SampleResult:
        """Waits for the device. Raises what the step raised."""
        self.hidden.block_until_ready()
        for arrival in self.arrivals:
            arrival.complete()
        return SampleResult(np.zeros(0, np.int32), np.zeros(0, bool), *_no_logprobs(0))


@dataclass
class SampleFuture:
    """A Sample under way."""

    output: SampleOutput
    num_rows: int
    want_logprobs: bool
    arrivals: list[Arrival]  # on their way since the step began

    def result(self) -> SampleResult:
        """Waits for the device. Raises what the step raised."""
        n, out = self.num_rows, self.output
        tokens, ok = np.asarray(out.tokens)[:n], np.asarray(out.ok)[:n]
        for arrival in self.arrivals:
            arrival.complete()
        if not self.want_logprobs:  # three transfers saved
            return SampleResult(tokens, ok, *_no_logprobs(n))
        rest = (np.asarray(x)[:n] for x in (out.logprobs, out.top_ids, out.top_logprobs))
        return SampleResult(tokens, ok, *rest)


@dataclass
class PromptLogprobsFuture:
    """A PromptLogprobs under way."""

    output: PromptLogprobsOutput
    count: int

    def result(self) -> PromptLogprobsResult:
        """Waits for the device. Raises what the step raised."""
        out = self.output
        parts = (out.ok, out.logprobs, out.ranks, out.top_ids, out.top_logprobs)
        return PromptLogprobsResult(*(np.asarray(part)[: self.count] for part in parts))


@dataclass
class PoolFuture:
    """A Pool under way. Few steps have one and hidden rows are few: summed here they need no program of their own."""

    hidden: Array
    hidden_rows: tuple[tuple[int, int], ...]

    def result(self) -> PoolResult:
        """Waits for the device. Raises what the step raised."""
        hidden = np.asarray(self.hidden)
        sums = [hidden[first : first + count].astype(np.float64).sum(axis=0) for first, count in self.hidden_rows]
        return PoolResult(np.stack(sums))
