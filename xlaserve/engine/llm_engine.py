"""Drives scheduler and runner: one `step()` at a time, from one thread. Token ids in, token ids out; no text, no jax.

The host never waits for a step before it has launched the next one. Tokens come back a step late, which the scheduler's
two clocks account for.
"""

import logging
from collections import deque

from xlaserve.core.deadlines import Deadlines
from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.step import SchedulerOutput
from xlaserve.engine.constrained import constrain
from xlaserve.engine.logit_rules import logit_rules
from xlaserve.errors import EngineUnavailable
from xlaserve.runner.commands import (
    Body,
    CopyBlocks,
    OffloadBlocks,
    ResetRow,
    RestoreBlocks,
    RowTokens,
    Runner,
    Sample,
    SampleResult,
    SampleRow,
    StepFuture,
)

logger = logging.getLogger(__name__)

MAX_FAILURES = 3  # in a row, no token coming back in between
FAILED = "The engine has failed; its log tells why."
TIMED_OUT = "The timeout of this request was over before the engine had room for it."


class LLMEngine:
    """With `async_scheduling` off each step is resolved at once: the same code, for debugging."""

    def __init__(self, scheduler: Scheduler, runner: Runner, *, async_scheduling: bool = True):
        self.scheduler = scheduler
        self.has_failed = False
        self.last_step_tokens = 0  # launched by the last step()
        self._runner = runner
        self._steps_ahead = 1 if async_scheduling else 0
        self._in_flight: deque[tuple[SchedulerOutput, StepFuture]] = deque()
        self._num_failures = 0
        self._deadlines = Deadlines()

    @property
    def num_padding_tokens(self) -> int:
        return self._runner.num_padding_tokens

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or self.scheduler.has_requests

    def add_request(self, request: Request) -> None:
        """Raises EngineUnavailable once the engine has failed."""
        if self.has_failed:
            raise EngineUnavailable(FAILED)
        self.scheduler.add(request)
        for each in (request, *request.forks):
            self._deadlines.add(each)

    def finish_request(self, request: Request, reason: FinishReason) -> EngineOutput | None:
        """Ends a request in any phase; its row and blocks are free at once. None if it has finished already."""
        if request.is_finished:
            return None
        self.scheduler.finish(request, reason)
        return EngineOutput(request.request_id, finish_reason=reason)

    def expire(self, now: float) -> list[EngineOutput]:
        """Ends the requests whose deadline has passed, wherever they are; tokens in flight are dropped.

        One that has begun ends like one that has reached its length; `now` is of time.monotonic().
        """
        outputs = []
        for request in self._deadlines.pop_expired(now):
            if request.first_scheduled_time is None:
                self.scheduler.finish(request, "timeout")
                outputs.append(EngineOutput(request.request_id, finish_reason="timeout", error=TIMED_OUT))
            else:
                self.scheduler.finish(request, "length")
                outputs.append(EngineOutput(request.request_id, finish_reason="length", stop_reason="timeout"))
        return outputs

    def step(self) -> list[EngineOutput]:
        """Launches the next step and returns what the one before it has brought.

        When a row's next token must keep to a constraint, the step's body is launched, then the last step's tokens are
        waited for, and only then what samples: the masks are made while the device computes the body.

        A step that fails loses the device's state, not the requests: what had come back stays, the rest is computed
        anew. When that happens MAX_FAILURES times in a row the engine has failed, and so have all its requests.
        """
        scheduled = self.scheduler.schedule()
        self.last_step_tokens = scheduled.num_tokens
        outputs: list[EngineOutput] = []
        try:
            if scheduled.rows:
                self._launch_body(scheduled)
                sample = _sample(scheduled)  # before anything comes back: who ends with that has no row any more
                if any(each.request.constraint is not None for each in scheduled.samples):
                    outputs += self._update(self._resolve(keep=0))  # what may come next depends on it
                    sample, more = constrain(self.scheduler, scheduled, sample)
                    outputs += more
                future = self._runner.execute(sample)
                assert future is not None
                self._in_flight.append((scheduled, future))
            outputs += self._update(self._resolve(keep=self._steps_ahead if scheduled.rows else 0))
        except Exception as error:
            outputs += self._recover(error)
        return outputs

    def _launch_body(self, scheduled: SchedulerOutput) -> None:
        """A Sample follows, even of no rows: its future is what keeps the host from running far ahead."""
        if scheduled.offloads:
            self._runner.execute(OffloadBlocks(tuple(scheduled.offloads)))
        for request in scheduled.admitted:
            self._runner.execute(_reset_row(request))
        for moves in scheduled.moves:
            if moves.restores:
                self._runner.execute(RestoreBlocks(tuple(moves.restores)))
            if moves.copies:
                self._runner.execute(CopyBlocks(tuple(moves.copies)))
        self._runner.execute(_body(scheduled))

    def _update(self, resolved: list[tuple[SchedulerOutput, SampleResult]]) -> list[EngineOutput]:
        outputs = [output for step, result in resolved for output in self.scheduler.update(step, result)]
        if outputs:
            self._num_failures = 0
        return outputs

    def _resolve(self, keep: int) -> list[tuple[SchedulerOutput, SampleResult]]:
        """Waits for all steps in flight but the newest `keep`."""
        resolved = []
        while len(self._in_flight) > keep:
            step, future = self._in_flight.popleft()
            resolved.append((step, future.result()))
        return resolved

    def _recover(self, error: Exception) -> list[EngineOutput]:
        self._in_flight.clear()
        self._num_failures += 1
        logger.error("step failed (%d in a row)", self._num_failures, exc_info=error)
        if self._num_failures < MAX_FAILURES:
            try:
                self._runner.rebuild()
            except Exception:
                logger.exception("the device state cannot be made anew")
            else:
                self.scheduler.restart()
                return []
        self.has_failed = True
        return self.finish_all("error", FAILED)

    def finish_all(self, reason: FinishReason, error: str | None = None) -> list[EngineOutput]:
        """Ends every request; nothing that is still under way is waited for."""
        self._in_flight.clear()
        requests = list(self.scheduler.requests())
        for request in requests:
            self.scheduler.finish(request, reason)
        return [EngineOutput(request.request_id, finish_reason=reason, error=error) for request in requests]


def _reset_row(request: Request) -> ResetRow:
    params = request.params
    return ResetRow(
        row=request.row,
        block_tables=tuple(map(tuple, request.block_tables)),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=request.seed,
        choice_index=request.choice_index,
        min_p=params.min_p,
        rules=logit_rules(request),
    )


def _body(scheduled: SchedulerOutput) -> Body:
    return Body(
        rows=tuple(RowTokens(row.row, row.start, row.num_tokens, row.token_ids) for row in scheduled.rows),
        table_deltas=tuple(scheduled.table_deltas),
        outputs=tuple(row.row for row in scheduled.rows if row.samples),
        num_samples=len(scheduled.samples),
    )


def _sample(scheduled: SchedulerOutput) -> Sample:
    outputs = (row.row for row in scheduled.rows if row.samples)
    hidden_rows = {row: index for index, row in enumerate(outputs)}
    rows = (SampleRow(hidden_rows[sample.row], sample.request.row, sample.position) for sample in scheduled.samples)
    return Sample(
        tuple(rows), want_logprobs=any(sample.request.params.logprobs is not None for sample in scheduled.samples)
    )
