"""What is under way on the device: futures of the commands that have a result."""

from dataclasses import dataclass

import numpy as np
from jax import Array

from xlaserve.runner.commands import PoolResult, PromptLogprobsResult, SampleResult
from xlaserve.runner.heads.prompt_logprobs import PromptLogprobsOutput
from xlaserve.runner.heads.sample import SampleOutput
from xlaserve.runner.host_blocks import Arrival
from xlaserve.sampling_params import MAX_LOGPROBS


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
        none = np.zeros((0, MAX_LOGPROBS), np.float32)
        return SampleResult(none[:, 0].astype(np.int32), none[:, 0] == 0, none[:, 0], none.astype(np.int32), none)


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
            none = np.zeros((n, MAX_LOGPROBS), np.float32)
            return SampleResult(tokens, ok, none[:, 0], none.astype(np.int32), none)
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
