"""A Runner that computes nothing: it takes the engine's commands and lets virtual time pass. Owns no memory."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from xlaserve.engine.simulation.costs import CostModel
from xlaserve.runner.buckets import Buckets, BucketUse
from xlaserve.runner.commands import Body, Command, Sample, SampleResult
from xlaserve.sampling_params import MAX_LOGPROBS

TOKEN = 1  # what every row samples; no request stops at it


class VirtualClock:
    """Calling it gives the time in seconds since the start; it moves only when told to.

    watch(seconds): called before each move with its length, while things are still as they were all that time.
    """

    def __init__(self, watch: Callable[[float], None]):
        self.now = 0.0
        self._watch = watch

    def __call__(self) -> float:
        return self.now

    def advance(self, to: float) -> None:
        """A time that has passed already changes nothing."""
        if to > self.now:
            self._watch(to - self.now)
            self.now = to


@dataclass(frozen=True)
class SimulatedFuture:
    clock: VirtualClock
    ready_at: float  # seconds
    sampled: SampleResult

    def result(self) -> SampleResult:
        self.clock.advance(self.ready_at)
        return self.sampled


class SimulatedRunner:
    """A device that takes steps one after the other, each as long as `costs` says, while the host's work takes no time.

    Commands other than Body are counted and cost nothing.
    """

    def __init__(self, costs: CostModel, buckets: Buckets, clock: VirtualClock):
        self.commands: Counter[str] = Counter()
        self.num_tokens = 0
        self.bucket_use = BucketUse.of(buckets)
        self._costs = costs
        self._buckets = buckets
        self._clock = clock
        self._free_at = 0.0

    def execute(self, command: Command) -> SimulatedFuture | None:
        self.commands[type(command).__name__] += 1
        if isinstance(command, Body):
            self._compute(command)
        if isinstance(command, Sample):
            return SimulatedFuture(self._clock, self._free_at, _sampled(len(command.rows)))
        return None

    def rebuild(self) -> None:
        raise AssertionError("a simulated step does not fail")

    def _compute(self, body: Body) -> None:
        num_tokens = sum([row.num_tokens for row in body.rows])
        context_tokens = sum([row.start for row in body.rows]) + num_tokens
        padded_tokens = self._buckets.tokens_for(num_tokens)
        self.num_tokens += num_tokens
        self.bucket_use.count(padded_tokens, num_tokens)
        self._free_at = max(self._free_at, self._clock.now) + self._costs.seconds(padded_tokens, context_tokens)


def _sampled(count: int) -> SampleResult:
    tokens = np.full(count, TOKEN, np.int32)
    logprobs = np.zeros((count, MAX_LOGPROBS), np.float32)
    return SampleResult(tokens, tokens == TOKEN, logprobs[:, 0], logprobs.astype(np.int32), logprobs)
