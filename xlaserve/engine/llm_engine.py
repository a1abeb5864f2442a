"""Drives scheduler and runner: one `step()` at a time, from one thread. Token ids in, token ids out; no text, no jax.

The host never waits for a step before it has launched the next one. Tokens come back a step late, which the scheduler's
two clocks account for.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass

from xlaserve.core.deadlines import Deadlines
from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.reading import ReadResult
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.step import SchedulerOutput
from xlaserve.core.swap import change_weights, hold_newcomers, on_old_weights, release_newcomers
from xlaserve.core.update import update, update_readings
from xlaserve.engine.constrained import constrain
from xlaserve.engine.logit_rules import logit_rules
from xlaserve.engine.step_commands import StepCommands
from xlaserve.errors import EngineUnavailable
from xlaserve.runner.buckets import BucketUse
from xlaserve.runner.commands import (
    CopyBlocks,
    DropWeights,
    OffloadBlocks,
    ResetRow,
    RestoreBlocks,
    Runner,
    SampleResult,
    Sleep,
    StepFuture,
    Wake,
)

logger = logging.getLogger(__name__)

MAX_FAILURES = 3  # in a row, no token coming back in between
FAILED = "The engine has failed; its log tells why."
REPLACED = "The model's weights were replaced while this request was running: send it again."
ASLEEP = "The model was laid to sleep before this request was finished."
TIMED_OUT = "The timeout of this request was over before the engine had anything for it."


@dataclass(frozen=True)
class _Step:
    """A step in flight."""

    scheduled: SchedulerOutput
    readings: list[StepFuture]  # of each kind that the step has, in the order of READING_KINDS
    sampled: StepFuture
    began: float  # of time.monotonic()


_Result = tuple[SchedulerOutput, list[ReadResult], SampleResult]  # what a step has brought


class LLMEngine:
    """With `async_scheduling` off each step is resolved at once: the same code, for debugging."""

    def __init__(self, scheduler: Scheduler, runner: Runner, *, async_scheduling: bool = True):
        self.scheduler = scheduler
        self.has_failed = False
        self.is_paused = False  # no step is made, whatever there is to do
        self.asleep = 0  # or the level of its sleep
        self.last_step_tokens = 0  # launched by the last step()
        self._runner = runner
        self._steps_ahead = 1 if async_scheduling else 0
        self._in_flight: deque[_Step] = deque()
        self._num_failures = 0
        self._last_result = 0.0  # when the last step came back
        self._deadlines = Deadlines()

    @property
    def bucket_use(self) -> BucketUse:
        return self._runner.bucket_use

    @property
    def has_work(self) -> bool:
        return not self.is_paused and (bool(self._in_flight) or self.scheduler.has_requests)

    @property
    def num_waiting_tokens(self) -> int:
        """Of the prompts of the requests that wait."""
        return self.scheduler.waiting.num_tokens + self.scheduler.held.num_tokens

    def add_request(self, request: Request) -> list[EngineOutput]:
        """Returns how it ended, should the weights be gone that it was to go on with.

        Raises EngineUnavailable once the engine has failed.
        """
        if self.has_failed:
            raise EngineUnavailable(FAILED)
        weights = self.scheduler.weights
        request.use_weights(weights.newest if request.continues is None else request.continues.weights_version)
        self.scheduler.add(request)
        if request.weights_version not in weights or self.asleep:
            return [self.scheduler.fail(request, REPLACED, "abort")]
        for each in (request, *request.forks):
            self._deadlines.add(each)
        return []

    def finish_request(self, request: Request, reason: FinishReason) -> EngineOutput | None:
        """Ends a request in any phase; its row and blocks are free at once. None if it has finished already."""
        if request.is_finished:
            return None
        self.scheduler.finish(request, reason)
        return EngineOutput(request.request_id, finish_reason=reason)

    def expire(self, now: float) -> list[EngineOutput]:
        """Ends the requests whose deadline has passed, wherever they are; tokens in flight are dropped.

        One that has begun ends like one that has reached its length, unless its prompt was to be read and has not been;
        `now` is of time.monotonic().
        """
        outputs = []
        for request in self._deadlines.pop_expired(now):
            reading = request.reading
            has_nothing = reading is not None and not reading.is_complete
            if request.first_scheduled_time is None or has_nothing:
                self.scheduler.finish(request, "timeout")
                outputs.append(EngineOutput(request.request_id, finish_reason="timeout", error=TIMED_OUT))
            else:
                self.scheduler.finish(request, "length")
                read = reading.outcome() if reading is not None and not request.num_output_tokens else None
                outputs.append(
                    EngineOutput(request.request_id, finish_reason="length", stop_reason="timeout", read=read)
                )
        return outputs

    def step(self) -> list[EngineOutput]:
        """Launches the next step and returns what the one before it has brought.

        When a row's next token must keep to a constraint, the step's body is launched, then the last step's tokens are
        waited for, and only then what samples: the masks are made while the device computes the body.

        A step that fails loses the device's state, not the requests: what had come back stays, the rest is computed
        anew. When that happens MAX_FAILURES times in a row the engine has failed, and so have all its requests.
        """
        began = time.monotonic()
        scheduled = self.scheduler.schedule()
        self.last_step_tokens = scheduled.num_tokens
        outputs: list[EngineOutput] = []
        try:
            if scheduled.rows:
                commands = StepCommands(scheduled)
                readings = self._launch_body(scheduled, commands)
                sample = commands.sample()  # before anything comes back: who ends with that has no row any more
                if any(each.request.constraint is not None for each in scheduled.samples):
                    outputs += self._update(self._resolve(keep=0))  # what may come next depends on it
                    sample, more = constrain(self.scheduler, scheduled, sample)
                    outputs += more
                future = self._runner.execute(sample)
                assert future is not None
                self._in_flight.append(_Step(scheduled, readings, future, began))
            outputs += self._update(self._resolve(keep=self._steps_ahead if scheduled.rows else 0))
        except Exception as error:
            outputs += self._recover(error)
        return outputs

    def _launch_body(self, scheduled: SchedulerOutput, commands: StepCommands) -> list[StepFuture]:
        """Returns the futures of what reads prompts. A Sample follows, even of no rows: its future is what keeps the
        host from running far ahead."""
        if scheduled.offloads:
            self._runner.execute(OffloadBlocks(tuple(scheduled.offloads)))
        for request in scheduled.admitted:
            self._runner.execute(_reset_row(request))
        for moves in scheduled.moves:
            if moves.restores:
                self._runner.execute(RestoreBlocks(tuple(moves.restores)))
            if moves.copies:
                self._runner.execute(CopyBlocks(tuple(moves.copies)))
        self._runner.execute(commands.body())
        return [future for command in commands.readings() if (future := self._runner.execute(command)) is not None]

    def _update(self, resolved: list[_Result]) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        for step, read, sampled in resolved:
            if step.readings:
                outputs += update_readings(self.scheduler, step, read)
                self._num_failures = 0
            outputs += update(self.scheduler, step, sampled)
        if outputs:
            self._num_failures = 0
        return outputs

    def _resolve(self, keep: int) -> list[_Result]:
        """Waits for all steps in flight but the newest `keep`."""
        resolved = []
        while len(self._in_flight) > keep:
            step = self._in_flight.popleft()
            read = [future.result() for future in step.readings]
            resolved.append((step.scheduled, read, step.sampled.result()))
            self._observe(step)
        return resolved

    def _observe(self, step: _Step) -> None:
        """How long the step took that has come back just now: from its beginning, or the end of the one before it."""
        began, self._last_result = max(step.began, self._last_result), time.monotonic()
        if self.scheduler.speculation:
            self.scheduler.speculation.costs.observe(step.scheduled.num_tokens, self._last_result - began)

    def settle(self) -> list[EngineOutput]:
        """Waits for all that is in flight: nothing is, until the next step."""
        try:
            return self._update(self._resolve(keep=0))
        except Exception as error:
            return self._recover(error)

    def pause(self) -> list[EngineOutput]:
        """No step is made until `resume`."""
        self.is_paused = True
        return self.settle()

    def resume(self) -> list[EngineOutput]:
        """Steps are made, and newcomers queued: the runner has got the weights that they waited for."""
        self.is_paused = False
        release_newcomers(self.scheduler)
        return []

    def sleep(self, level: int) -> list[EngineOutput]:
        """Ends what there still is. Level 1: the weights leave the device; 2: they are dropped, with all KV."""
        outputs = [*self.pause(), *self.finish_all("abort", ASLEEP)]
        self._runner.execute(Sleep(level))
        self.asleep = level
        if level == 2:
            self.scheduler.block_manager.forget_all()
        return outputs

    def wake(self) -> list[EngineOutput]:
        """After level 2 the runner must have got the weights of the version after the newest."""
        self._runner.execute(Wake())
        if self.asleep == 2:
            change_weights(self.scheduler, self.scheduler.weights.newest + 1, recompute=False)
            self.drop_old_weights()
        self.asleep = 0
        return self.resume()

    def give_up(self) -> list[EngineOutput]:
        """The runner has got nothing to go on with."""
        self.has_failed = True
        return self.finish_all("error", FAILED)

    def use_weights(self, version: int, *, recompute: bool, hold: bool = False) -> list[EngineOutput]:
        """Other weights, for all requests that have not begun; with `recompute` for all, whose KV is computed anew.

        Those that have begun else go on with what they have, which is dropped when the last of them has ended.
        hold: the runner has not got them yet: who has not begun waits for `resume`.
        """
        outputs = self.settle()
        if hold:
            hold_newcomers(self.scheduler)
        change_weights(self.scheduler, version, recompute=recompute)
        self.drop_old_weights()
        return outputs

    def drop_old_weights(self) -> None:
        """Those that no request goes on with."""
        if len(weights := self.scheduler.weights) > 1:
            for version in weights.unused(each.weights_version for each in on_old_weights(self.scheduler)):
                weights.remove(version)
                self._runner.execute(DropWeights(version))

    def end_old(self) -> list[EngineOutput]:
        """Ends what goes on with old weights, which are dropped."""
        outputs = []
        for request in on_old_weights(self.scheduler):
            if request.is_finished:  # between two steps of a search, whose next one finds no weights
                self.scheduler.kept_rows.close(request)
            else:
                outputs.append(self.scheduler.fail(request, REPLACED, "abort"))
        self.drop_old_weights()
        return outputs

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
        return self.give_up()

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
