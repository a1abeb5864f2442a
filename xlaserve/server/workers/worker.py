"""A worker as the engine's process sees it: one thread sends it what is new of its answers, another hears it.

A step's outputs are one frame. The engine's thread touches no socket: it wakes the sender, once for all of a step.
"""

import itertools
import json
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from xlaserve.errors import XlaserveError
from xlaserve.server.errors import ClientGone
from xlaserve.server.pump import LOOK_SECONDS
from xlaserve.server.sse import EventStream
from xlaserve.server.workers.frames import FrameReader, Kind, WrongVersion, frame, json_frame
from xlaserve.server.workers.outputs import Entry, encode_outputs, facts_of
from xlaserve.server.workers.recipes import describe

if TYPE_CHECKING:
    from xlaserve.engine.generation import Generation
    from xlaserve.engine.service import GenerationService

SEND_SECONDS = 10.0  # for a worker to read: if longer, it hangs
END_SECONDS = 15.0  # for a worker to end an answer that it is told to end: likewise
STOP_SECONDS = 8.0  # for it to end, once nobody talks to it: it tells its clients first

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Answer:
    """One that a worker writes. `is_due` and `over` are of several threads, the rest is the sender's."""

    stream: EventStream
    descriptor: int
    chunked: bool
    number: int = -1  # not sent yet
    first: int = -1  # number of its first generation
    begun: set[int] = field(default_factory=set)  # generations that have had an output, by index
    ended_at: float | None = None  # nothing more is sent
    is_due: bool = False
    has_failed: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def choices(self) -> "list[Generation]":
        """A beam search, the other kind, is not streamed."""
        return cast("list[Generation]", self.stream.generations.by_index)


class Worker:
    """The process runs from construction until `close`; `hear` is to be called on a thread of its own."""

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-m", "xlaserve.server.workers.program", str(descriptor)]
            self.process = subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL)
        self._socket.settimeout(SEND_SECONDS)
        self._due: queue.SimpleQueue[_Answer | bytes | GenerationService | None] = queue.SimpleQueue()
        self._open: set[_Answer] = set()  # that somebody waits for
        self._answers: dict[int, _Answer] = {}  # by number, those that it knows of
        self._generations: dict[int, Generation] = {}  # by number, of those
        self._numbers = itertools.count()
        self._next_generation = 0
        self._told: dict[str, weakref.ref[GenerationService]] = {}  # which one a model's name stands for
        self._known: set[str] = set()  # models that it has said it knows
        self._expected: set[str] = set()  # those that it has to know before its first answer
        self._is_lost = False
        self._sender = threading.Thread(target=self._send_all, name="worker sender", daemon=True)
        self._sender.start()

    @property
    def is_ready(self) -> bool:
        """It runs, and knows what it has been prepared for."""
        return not self._is_lost and self._expected <= self._known

    @property
    def num_answers(self) -> int:
        return len(self._open)

    def prepare(self, service: "GenerationService") -> None:
        """Tells it of a model, before the first answer."""
        self._expected.add(service.info.name)
        self._due.put(service)

    def send(self, stream: EventStream, descriptor: int, *, chunked: bool) -> None:
        """Returns when all has been written to the client, whose socket is `descriptor`. `chunked`: see Client.

        Raises ConnectionError when the client has gone, or the worker.
        """
        answer = _Answer(stream, descriptor, chunked)
        self._open.add(answer)  # first: `end` goes through them after it has said that all is lost
        try:
            stream.news.listener = partial(self._tell, answer)
            self._tell(answer)
            if not self._is_lost:
                answer.over.wait()
        finally:
            self._open.discard(answer)
        if answer.has_failed or self._is_lost:
            raise ConnectionAbortedError("the answer could not be written to its end")

    def hear(self) -> None:
        """Returns when the process has ended, or hangs, or `end` has been called."""
        reader = FrameReader(self._socket)
        try:
            while not self._is_lost and self._read(reader):
                for kind, body in reader.frames():
                    self._hear(kind, json.loads(body))
        except (OSError, WrongVersion) as error:
            _logger.error("worker %d: %s", self.process.pid, error)
        finally:
            self.end()

    def end(self) -> None:
        """By any thread: what it still writes ends with an error, and all who wait for it notice."""
        self._is_lost = True
        self._due.put(None)
        with suppress(OSError):  # it is shut already
            self._socket.shutdown(socket.SHUT_RDWR)  # which wakes who reads, as closing would not
        for answer in list(self._open):
            answer.has_failed = True
            answer.over.set()

    def close(self) -> None:
        """After `hear`: returns when the process is gone."""
        self.end()
        self._sender.join()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._socket.close()

    def _read(self, reader: FrameReader) -> bool:
        try:
            return reader.read()
        except TimeoutError:
            return True

    def _hear(self, kind: Kind, told: dict[str, Any]) -> None:
        if kind == Kind.READY:
            self._known.add(told["model"])
        elif kind == Kind.ABORT:
            if (generation := self._generations.get(told["number"])) is not None:
                generation.abort(told["reason"])
        elif (answer := self._answers.get(told["answer"])) is None:
            return
        elif kind == Kind.KEEP:
            assert answer.stream.job is not None
            answer.stream.job.recipe.keep(told["id"], told["response"].encode())
            self._due.put(json_frame(Kind.KEPT, {"answer": answer.number}))
        elif kind == Kind.OVER:
            del self._answers[answer.number]
            for index in range(len(answer.choices)):
                del self._generations[answer.first + index]
            answer.has_failed = told["failed"]
            answer.over.set()

    def _tell(self, answer: _Answer) -> None:
        """By any thread: there is something new."""
        if not answer.is_due:
            answer.is_due = True
            self._due.put(answer)

    def _send_all(self) -> None:
        next_look = time.monotonic() + LOOK_SECONDS
        try:
            while not self._is_lost:
                entries: list[Entry] = []
                for answer in self._next_due():
                    self._visit(answer, entries)
                if entries:
                    self._socket.sendall(frame(Kind.OUTPUTS, encode_outputs(entries)))
                if time.monotonic() >= next_look:
                    for answer in list(self._answers.values()):
                        self._look(answer)
                    next_look = time.monotonic() + LOOK_SECONDS
        except Exception as error:
            if not self._is_lost:
                _logger.error("worker %d hangs, or has ended: %r", self.process.pid, error)
                self.process.kill()
        finally:
            self.end()

    def _next_due(self) -> dict[_Answer, None]:
        """All that is there, once something is. What is no answer is dealt with here."""
        due: dict[_Answer, None] = {}
        try:
            one = self._due.get(timeout=LOOK_SECONDS)
            while True:
                if isinstance(one, _Answer):
                    due[one] = None
                elif isinstance(one, bytes):
                    self._socket.sendall(one)
                elif one is not None:
                    self._introduce(one)
                one = self._due.get_nowait()
        except queue.Empty:
            return due

    def _introduce(self, service: "GenerationService") -> None:
        """A model, unless it knows that."""
        info, known = service.info, self._told.get(service.info.name)
        if known is None or known() is not service:
            told = {"info": asdict(info) | {"eos_ids": sorted(info.eos_ids)}, "tokenizer": service.tokenizer.to_json()}
            self._told[info.name] = weakref.ref(service)
            self._socket.sendall(json_frame(Kind.MODEL, told))

    def _visit(self, answer: _Answer, entries: list[Entry]) -> None:
        answer.is_due = False  # before looking: what comes after the look is told again
        if answer.over.is_set() or answer.ended_at is not None:
            return
        if answer.number < 0:
            self._begin(answer)
        first, begun = answer.first, answer.begun
        for index, output in answer.stream.generations.outputs():
            facts = None
            if index not in begun:
                begun.add(index)
                facts = facts_of(answer.choices[index].request)
            entries.append((first + index, output, facts))

    def _begin(self, answer: _Answer) -> None:
        job, service = answer.stream.job, answer.stream.service
        assert job is not None
        assert service is not None
        self._introduce(service)
        answer.number, answer.first = next(self._numbers), self._next_generation
        self._next_generation += len(answer.choices)
        self._generations |= {answer.first + index: choice for index, choice in enumerate(answer.choices)}
        self._answers[answer.number] = answer
        told = {"answer": answer.number, "first": answer.first, "chunked": answer.chunked, "model": service.info.name}
        data = json_frame(Kind.ANSWER, told | {"recipe": describe(job)})
        sent = socket.send_fds(self._socket, [data], [answer.descriptor])
        self._socket.sendall(memoryview(data)[sent:])

    def _look(self, answer: _Answer) -> None:
        """Ends one that cannot be finished, or that nobody reads."""
        if answer.ended_at is not None:
            if time.monotonic() - answer.ended_at > END_SECONDS:
                raise TimeoutError("an answer that was to end has not")
            return
        try:
            answer.stream.generations.check()
        except Exception as error:
            if not isinstance(error, XlaserveError | ClientGone):
                _logger.exception("Error in a stream")
            answer.ended_at = time.monotonic()
            answer.stream.generations.abort()
            told = None if isinstance(error, ClientGone) else (type(error).__name__, str(error))
            self._socket.sendall(json_frame(Kind.END, {"answer": answer.number, "error": told}))
