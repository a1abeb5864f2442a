"""One thread makes and writes the events of all streamed answers: a step's tokens wake it once, and no hundred threads
that would take turns with the engine's.

Where tokens come faster than events go, an event has several.
"""

import queue
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from xlaserve.server.sse import EventStream

STOP_SECONDS = 5.0  # for what it is about
FULL_BYTES = 2**16  # of events that wait for a client: what comes then is made into events later
LOOK_SECONDS = 0.5  # how soon a client that has gone, or is ready to take more, is noticed while nothing is generated


class Writer(Protocol):
    """To one client."""

    @property
    def is_full(self) -> bool:
        """What has been written waits for the client: a further write might wait, too."""
        ...

    def write(self, data: bytes) -> None:
        """Raises when the client has gone."""
        ...


@dataclass(eq=False)
class Answer:
    """One that is being written; of one thread, but for `is_due`."""

    stream: EventStream
    writer: Writer
    is_due: bool = False  # there is news of it, and somebody will visit it
    error: BaseException | None = None

    def visit(self) -> bool:
        """Writes what is new, if the client takes it. True: no more will come, or something has raised `error`."""
        self.is_due = False  # before looking: what comes after the look is told again
        try:
            if self.writer.is_full:
                return False
            events = self.stream.events()
            if events:
                self.writer.write(events)
            return events is None or self.stream.is_over
        except BaseException as error:  # whoever waits for this answer is to know
            self.error = error
            return True


@dataclass(eq=False)
class _Awaited(Answer):
    over: threading.Event = field(default_factory=threading.Event)


class Pump:
    """Runs from construction until `stop`."""

    def __init__(self):
        self._due: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
        self._answers: set[_Awaited] = set()  # under way; the thread's own
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def send(self, stream: EventStream, writer: Writer) -> None:
        """Returns when all has been written. Raises what writing raised, and RuntimeError when the pump has stopped."""
        answer = _Awaited(stream, writer)
        stream.news.listener = partial(self._tell, answer)
        self._tell(answer)
        while not answer.over.wait(LOOK_SECONDS):
            if not self._thread.is_alive():
                raise RuntimeError("the server has closed before the answer was written")
        if answer.error is not None:
            raise answer.error

    def stop(self) -> None:
        """What is still under way is written no further."""
        self._due.put(None)
        self._thread.join(STOP_SECONDS)

    def _tell(self, answer: _Awaited) -> None:
        """By any thread: there is something new."""
        if not answer.is_due:
            answer.is_due = True
            self._due.put(answer)

    def _run(self) -> None:
        next_look = time.monotonic() + LOOK_SECONDS
        while True:
            try:
                if (answer := self._due.get(timeout=LOOK_SECONDS)) is None:
                    return
                if not answer.over.is_set():  # an engine may have something to say of one that has been given up
                    self._answers.add(answer)
                    self._visit(answer)
            except queue.Empty:
                pass
            if time.monotonic() >= next_look:
                for answer in list(self._answers):
                    self._visit(answer)
                next_look = time.monotonic() + LOOK_SECONDS

    def _visit(self, answer: _Awaited) -> None:
        if answer.visit():
            self._answers.discard(answer)
            answer.over.set()
