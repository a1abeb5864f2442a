"""Who does what when: the engine's thread, the device, and those who make text of tokens.

The engine knows nothing of it: while it is `recorded`, some of its methods and programs are replaced by such as look at
the clock before and after. So nothing is there that could cost anything where nothing is recorded.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

import jax

from xlaserve.engine.output_processor import OutputProcessor
from xlaserve.engine.service import GenerationService
from xlaserve.runner.commands import Command, Sample
from xlaserve.runner.programs import Programs

DEVICE = "device"  # the track of what it computes
STEP = "step"
WAIT = "wait for the device"  # within a step
BODY = "body"  # the name of its runs begins so
_SWITCH_SECONDS = 50e-6


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds of time.perf_counter()."""

    track: str  # the thread's name, or DEVICE
    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Trace:
    """Spans of each track in the order of their ends. Any thread may add one."""

    def __init__(self):
        self.spans: list[Span] = []
        self._launched: SimpleQueue[tuple[str, float, jax.Array] | None] = SimpleQueue()

    def add(self, name: str, start: float) -> None:
        """One of this thread, which ends now."""
        self.spans.append(Span(threading.current_thread().name, name, start, time.perf_counter()))

    def timed(self, name: str, function: Callable) -> Any:
        """`function`, each call a span of the thread that makes it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.add(name, start)

        return call

    def watched(self, name: str, program: Callable) -> Any:
        """A compiled program, each run a span of the device. The first leaf of what it returns must not be donated.

        A device does one program after the other: a run begins when the call that launches it has returned and the run
        before it has ended. One that is over when the call returns was computed by the caller.
        """

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            returned = program(*args)
            leaf = jax.tree.leaves(returned)[0]
            self._launched.put((name, start if leaf.is_ready() else time.perf_counter(), leaf))
            return returned

        return call

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A thread waits for the runs of watched programs, and notes when each has ended.

        To read the clock it needs Python's lock, which a busy thread gives away every 5 ms only, as a rule: so late an
        end would hide the very gap that this thread makes.
        """
        thread = threading.Thread(target=self._watch, name="trace", daemon=True)
        thread.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            self._launched.put(None)
            thread.join()

    def _watch(self) -> None:
        last_end = 0.0
        while (run := self._launched.get()) is not None:
            name, launched, leaf = run
            leaf.block_until_ready()
            end = time.perf_counter()
            self.spans.append(Span(DEVICE, name, max(launched, last_end), end))
            last_end = end


@contextmanager
def recorded(service: GenerationService, trace: Trace) -> Iterator[None]:
    """Records until the end of the block. Its programs must all be there: others may not join them meanwhile."""
    loop = service._loop
    engine = loop._engine
    runner: Any = engine._runner
    execute, programs = runner.execute, runner.programs

    def launch(command: Command) -> Any:
        return launch_sample(command) if isinstance(command, Sample) else execute(command)

    launch_sample = trace.timed("launch sample", execute)
    steps = (
        (engine, STEP, engine.step),
        (engine.scheduler, "schedule", engine.scheduler.schedule),
        (engine, "launch body", engine._launch_body),
        (engine, WAIT, engine._resolve),
        (engine, "update", engine._update),
        (loop, "deliver", loop._deliver),
    )
    with trace.watching(), ExitStack() as stack:
        for owner, name, method in steps:
            stack.enter_context(patch.object(owner, method.__name__, trace.timed(name, method)))
        stack.enter_context(patch.object(runner, "execute", launch))
        push = OutputProcessor.push
        stack.enter_context(patch.object(OutputProcessor, "push", trace.timed("make text", push)))
        runner.use(_watched(programs, trace))
        stack.callback(runner.use, programs)
        yield


def _watched(programs: Programs, trace: Trace) -> Programs:
    """Those that a step is made of; of the rest, which are short, what they return is donated before it is there."""
    return replace(
        programs,
        bodies={size: trace.watched(f"{BODY} {size}", each) for size, each in programs.bodies.items()},
        samples={key: trace.watched("sample", each) for key, each in programs.samples.items()},
        prompt_logprobs=trace.watched("prompt logprobs", programs.prompt_logprobs),
    )
