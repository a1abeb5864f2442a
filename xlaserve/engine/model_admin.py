"""Orders to a running engine about its weights: others in their place. One at a time, on the caller's thread.

The engine goes on while a checkpoint is read; what changes, changes between two of its steps.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from xlaserve.core.outputs import EngineOutput
from xlaserve.engine.engine_loop import EngineLoop
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.metrics import EngineMetrics
from xlaserve.engine.weights_store import Store
from xlaserve.errors import CheckpointError, EngineUnavailable, InvalidRequest, ModelAsleep

logger = logging.getLogger(__name__)

# What becomes of requests that have begun: they finish on the weights they have; go on with the new ones, their KV
# computed anew from all their tokens; or end with an error.
SwapPolicy = Literal["drain", "recompute", "abort"]
SleepLevel = Literal[1, 2]
POLL_SECONDS = 0.005
ORDER_SECONDS = 0.25  # that an order waits for another: it may be about to end, as falling asleep does
WAKE_SECONDS = 60.0  # that a request waits for the model it has woken


@dataclass
class SwapReport:
    """What a swap has come to."""

    weights_version: int = 0
    num_ended: int = 0  # requests, before their time
    seconds: dict[str, float] = field(default_factory=dict)  # of each part


class ModelAdmin:
    """All methods may be called from any thread; while one is under way others are refused with a 409."""

    def __init__(self, loop: EngineLoop, engine: LLMEngine, metrics: EngineMetrics, store: Store):
        self._loop = loop
        self._engine = engine
        self._metrics = metrics
        self._store = store
        self._order = threading.Lock()
        self._sleeps_idle = False

    @property
    def asleep(self) -> int:
        """The level of its sleep; 0: awake."""
        return self._engine.asleep

    @property
    def wakes_itself(self) -> bool:
        """Whether it sleeps because nobody has asked anything: then the next request wakes it."""
        return self._sleeps_idle

    @property
    def source(self) -> str:
        """Where the weights come from that newcomers get, as whoever chose them has named it."""
        return self._store.current.source

    def swap(self, path: Path, policy: SwapPolicy, timeout: float) -> SwapReport:
        """Replaces the weights by those of the checkpoint at `path`, and waits until the old ones are gone.

        timeout: seconds for requests that finish on the old weights, after which they end with an error. Where memory
        does not hold both sets, newcomers wait until the old ones have gone and the new ones are read.
        Raises InvalidRequest for a checkpoint that cannot be used: then the old weights serve as before.
        """
        with self._alone():
            if self.asleep:
                raise InvalidRequest("The model sleeps: wake it first (/admin/wake).", status=409)
            report = SwapReport()
            started = time.monotonic()
            with _timed(report, "check"), _as_bad_request():
                checkpoint = self._store.open(path)
            report.weights_version = self._engine.scheduler.weights.newest + 1
            if self._store.fits_beside():
                with _timed(report, "read"), _as_bad_request():
                    self._store.load(checkpoint, report.weights_version)
                self._change(report, policy, timeout)
            else:
                self._change_in_place(report, policy, timeout, checkpoint)
            self._store.current = checkpoint
            self._metrics.observe_swap(time.monotonic() - started)
            return report

    def sleep(self, level: SleepLevel, timeout: float) -> None:
        """Takes no more requests, gives the present ones `timeout` seconds to end, then frees the device's memory.

        Level 1: the weights go to host memory; 2: they are dropped, and the KV pool with all that is cached. The
        programs stay. One that sleeps as deep already is not touched, but only `wake` wakes it from now on.
        """
        with self._alone():
            self._sleeps_idle = False
            if self.asleep >= level:
                return
            if self.asleep:
                self._loop.call(LLMEngine.wake)
            elif not self._loop.close_door(timeout):
                raise EngineUnavailable(f"The engine is {self._loop.state}.")
            self._lay_down(level)

    def sleep_if_idle(self, after: float, level: SleepLevel) -> None:
        """`sleep`, if there has been no request for `after` seconds; the next one wakes it."""
        if self.asleep or self._loop.idle_seconds() < after or not self._order.acquire(blocking=False):
            return
        try:
            self._sleeps_idle = True  # before a request can find the door closed
            if self._loop.close_door(0.0, idle_for=after):
                self._lay_down(level)
            else:
                self._sleeps_idle = False
        finally:
            self._order.release()

    def wake(self) -> None:
        """Harmless when it is awake. Raises EngineUnavailable, and it sleeps on, where its weights cannot be read."""
        with self._alone():
            self._get_up()

    def wake_for_request(self) -> bool:
        """Wakes a model that sleeps because it was idle, or waits until another request has woken it.

        False where it sleeps by order.
        """
        if not self._sleeps_idle:
            return not self.asleep
        if not self._order.acquire(timeout=WAKE_SECONDS):
            raise ModelAsleep("The model takes long to wake: try again later.")
        try:
            if self._sleeps_idle:
                self._get_up()
            return not self.asleep
        finally:
            self._order.release()

    def _lay_down(self, level: SleepLevel) -> None:
        try:
            self._loop.call(lambda engine: engine.sleep(level))
        except BaseException:
            self._sleeps_idle = False
            self._loop.open_door()
            raise

    def _get_up(self) -> None:
        try:
            if self.asleep == 2:
                self._store.reload(self._engine.scheduler.weights.newest + 1)
            if self.asleep:
                self._loop.call(LLMEngine.wake)
        except (CheckpointError, MemoryError, RuntimeError) as error:  # jax tells of a lack of memory by the last
            raise EngineUnavailable(f"The model sleeps on, for it cannot be woken: {error}") from error
        self._loop.open_door()
        self._sleeps_idle = False

    def _change(self, report: SwapReport, policy: SwapPolicy, timeout: float, *, hold: bool = False) -> None:
        def use_weights(engine: LLMEngine) -> list[EngineOutput]:
            with _timed(report, "stall"):
                return engine.use_weights(report.weights_version, recompute=policy == "recompute", hold=hold)

        self._loop.call(use_weights)
        with _timed(report, "drain"):
            self._drain(report, 0.0 if policy == "abort" else timeout)

    def _drain(self, report: SwapReport, timeout: float) -> None:
        """Waits until the old weights are gone."""

        def end_old(engine: LLMEngine) -> list[EngineOutput]:
            ended = engine.end_old()
            report.num_ended += len(ended)
            return ended

        until = time.monotonic() + timeout
        while len(self._engine.scheduler.weights) > 1:
            if time.monotonic() >= until:
                self._loop.call(end_old)
            elif self._loop.is_over:
                raise EngineUnavailable("The engine has ended while weights were replaced.")
            else:
                time.sleep(POLL_SECONDS)

    def _change_in_place(self, report: SwapReport, policy: SwapPolicy, timeout: float, checkpoint: object) -> None:
        """Newcomers, and with `recompute` everybody, wait between the last of the old weights and the new ones."""
        try:
            if policy == "recompute":
                self._loop.call(LLMEngine.pause)
            self._change(report, policy, timeout, hold=True)
            try:
                with _timed(report, "read"), _as_bad_request():
                    self._store.load(checkpoint, report.weights_version)
            except BaseException:
                self._bring_back(report.weights_version)
                raise
        finally:
            self._loop.call(LLMEngine.resume)

    def _bring_back(self, version: int) -> None:
        """The weights from before, for whoever waits for new ones."""
        try:
            self._store.reload(version)
        except Exception:
            logger.exception("the weights from before cannot be read again")
            self._loop.call(LLMEngine.give_up)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._order.acquire(timeout=ORDER_SECONDS):
            raise InvalidRequest("Another order about this model's weights is being carried out.", status=409)
        try:
            yield
        finally:
            self._order.release()


@contextmanager
def _timed(report: SwapReport, part: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        report.seconds[part] = time.monotonic() - started


@contextmanager
def _as_bad_request() -> Iterator[None]:
    """A checkpoint that cannot be used is the fault of whoever named it."""
    try:
        yield
    except CheckpointError as error:
        raise InvalidRequest(f"The weights from before go on serving: {error}", param="path") from error
