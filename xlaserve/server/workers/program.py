"""A worker: writes the events of the answers that the engine's process gives it, to their clients, on one thread.

`python -m xlaserve.server.workers.program DESCRIPTOR` of a socket to that process. It ends when that one does, once it
has told its clients. It loads no model and no jax.
"""

import json
import logging
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from xlaserve import errors
from xlaserve.core.outputs import FinishReason
from xlaserve.core.request import Request
from xlaserve.engine.generation import Generation
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.news import News
from xlaserve.engine.output_processor import OutputProcessor
from xlaserve.engine.output_stream import OutputStream
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.sampling_params import SamplingParams
from xlaserve.scheduling_params import NO_PREFERENCE, SchedulingParams
from xlaserve.server.errors import ClientGone
from xlaserve.server.pump import LOOK_SECONDS, Answer
from xlaserve.server.sse import EventStream
from xlaserve.server.workers.client import Client
from xlaserve.server.workers.frames import FrameReader, Kind, json_frame
from xlaserve.server.workers.outputs import decode_outputs
from xlaserve.server.workers.recipes import restore

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

SEND_SECONDS = 10.0  # for the engine's process to read
CLOSE_SECONDS = 5.0  # for a client to take the error that ends its answer
SLOW_SECONDS = 120.0  # in which a client takes nothing of the end of its answer; waitress' own limit

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Model:
    """One that is served, without its engine."""

    info: ModelInfo
    tokenizer: Tokenizer


@dataclass(eq=False)
class _Remote:
    """Stands for the engine to one answer, whose generations have the numbers from `first` on."""

    worker: "Worker"
    model: _Model
    first: int
    streams: list[OutputStream] = field(default_factory=list)
    failure: Exception | None = None  # nothing more will come
    failed_at: float = 0.0

    def submit_all(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        request_ids: Sequence[str],
        news: News,
        _scheduling: SchedulingParams,
    ) -> list[Generation]:
        """They run already."""
        return [
            self._follow(prompt_ids, its_params, request_id, news)
            for prompt_ids, its_params, request_id in zip(prompts, params, request_ids, strict=True)
        ]

    def _follow(self, prompt_ids: list[int], params: SamplingParams, request_id: str, news: News) -> Generation:
        stop_ids = self.model.info.stop_ids(params)
        request = Request(request_id, prompt_ids, params, max_total_tokens=0, stop_ids=stop_ids, seed=0)
        for index in range(1, params.n):
            request.add_fork(f"{request_id}-{index}", index)
        stream = OutputStream(request, news)
        generation, *forks = (self._generation(each) for each in (stream, *stream.forks))
        generation.forks = forks
        return generation

    def _generation(self, stream: OutputStream) -> Generation:
        self.worker.streams[self.first + len(self.streams)] = stream
        self.streams.append(stream)
        request = stream.request
        processor = OutputProcessor(self.model.tokenizer, request.prompt_ids, request.params, request.stop_ids)
        return Generation(stream, processor, self)

    def abort(self, stream: OutputStream, reason: FinishReason = "abort") -> None:
        self.worker.tell(Kind.ABORT, number=self.first + self.streams.index(stream), reason=reason)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, failure: Exception) -> None:
        self.failure = failure
        self.failed_at = time.monotonic()


@dataclass(eq=False)
class _Given(Answer):
    """An answer under way, by the number that the engine's process has given it."""

    number: int = field(kw_only=True)
    remote: _Remote = field(kw_only=True)
    client: Client = field(kw_only=True)
    is_written: bool = False  # though perhaps not taken

    def is_late(self, now: float) -> bool:
        """Its client has had time enough for what is left."""
        if self.remote.failure is not None:
            return now - self.remote.failed_at > CLOSE_SECONDS
        return self.is_written and now - self.client.last_progress > SLOW_SECONDS


class Worker:
    """Over a socket to the engine's process; `run` returns when that has gone."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(SEND_SECONDS)
        self._socket = sock
        self._reader = FrameReader(sock)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ, self._read)
        self._is_alone = False  # the engine's process has gone
        self._models: dict[str, _Model] = {}
        self._answers: dict[int, _Given] = {}
        self._due: list[_Given] = []
        self.streams: dict[int, OutputStream] = {}  # by the number of the generation

    def run(self) -> None:
        next_look = time.monotonic() + LOOK_SECONDS
        while self._answers or not self._is_alone:
            for key, _ in self._selector.select(max(0.0, next_look - time.monotonic())):
                key.data()
            due, self._due = self._due, []
            for answer in due:
                self._visit(answer)
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + LOOK_SECONDS

    def tell(self, kind: Kind, **content: Any) -> None:
        """To the engine's process, if it is there."""
        if not self._is_alone:
            try:
                self._socket.sendall(json_frame(kind, content))
            except OSError:
                self._go_on_alone()

    def _read(self) -> None:
        try:
            is_there = self._reader.read()
        except OSError:
            is_there = False
        for kind, body in self._reader.frames():
            self._hear(kind, body)
        if not is_there and not self._is_alone:
            self._go_on_alone()

    def _go_on_alone(self) -> None:
        """Until all clients have been told."""
        self._is_alone = True
        self._selector.unregister(self._socket)
        for answer in self._answers.values():
            answer.remote.fail(errors.EngineUnavailable("The server has ended before the request was finished."))
            self._release(answer)
            self._have_visited(answer)

    def _hear(self, kind: Kind, body: bytes) -> None:
        if kind == Kind.OUTPUTS:
            for number, output, facts in decode_outputs(body):
                if (stream := self.streams.get(number)) is not None:
                    for name, value in (facts or {}).items():
                        setattr(stream.request, name, value)
                    stream.put(output)
            return
        told = json.loads(body)
        if kind == Kind.MODEL:
            info = ModelInfo(**told["info"] | {"eos_ids": frozenset(told["info"]["eos_ids"])})
            self._models[info.name] = _Model(info, Tokenizer.from_json(told["tokenizer"]))
            self.tell(Kind.READY, model=info.name)
        elif kind == Kind.ANSWER:
            self._begin(told)
        elif (answer := self._answers.get(told["answer"])) is None:
            pass  # it was over before this was heard
        elif kind == Kind.END:
            failure = told["error"] and getattr(errors, told["error"][0], RuntimeError)(told["error"][1])
            answer.remote.fail(failure or ClientGone())
            self._have_visited(answer)
        elif kind == Kind.KEPT:
            self._release(answer)
            self._have_visited(answer)

    def _begin(self, told: dict[str, Any]) -> None:
        number, sock = told["answer"], socket.socket(fileno=self._reader.descriptors.popleft())

        def wants_room(wants: bool) -> None:
            if wants:
                self._selector.register(sock, selectors.EVENT_WRITE, partial(self._flush, answer))
            else:
                self._selector.unregister(sock)

        def keep(answer_id: str, response: bytes) -> None:
            client.hold()
            self.tell(Kind.KEEP, answer=number, id=answer_id, response=response.decode())

        client = Client(sock, chunked=told["chunked"], wants_room=wants_room)
        remote = _Remote(self, self._models[told["model"]], told["first"])
        try:
            job = restore(remote.model, told["recipe"], keep)
            generations = job.start(cast("GenerationService", remote), NO_PREFERENCE, remote.check)
        except Exception:  # a fault of ours, which is to cost this answer alone
            _logger.exception("An answer could not be begun")
            client.close()
            self.tell(Kind.OVER, answer=number, failed=True)
            return
        stream = EventStream(generations, job.stream(generations), client.close)
        answer = _Given(stream, client, number=number, remote=remote, client=client)
        self._answers[number] = answer
        generations.news.listener = partial(self._have_visited, answer)
        self._have_visited(answer)

    def _have_visited(self, answer: _Given) -> None:
        if not answer.is_due:
            answer.is_due = True
            self._due.append(answer)

    def _release(self, answer: _Given) -> None:
        try:
            answer.client.release()
        except OSError as error:
            answer.error = error

    def _flush(self, answer: _Given) -> None:
        try:
            answer.client.flush()
        except OSError as error:
            answer.error = error
        self._visit(answer)

    def _visit(self, answer: _Given) -> None:
        if answer.number not in self._answers:
            return
        if not answer.is_written and answer.error is None:
            answer.is_written = answer.visit()
        if answer.error is not None or (answer.is_written and answer.client.is_empty):
            self._finish(answer)

    def _look(self) -> None:
        now = time.monotonic()
        for answer in list(self._answers.values()):
            if answer.is_late(now):
                answer.error = TimeoutError()
            self._visit(answer)

    def _finish(self, answer: _Given) -> None:
        del self._answers[answer.number]
        for index in range(len(answer.remote.streams)):
            self.streams.pop(answer.remote.first + index, None)
        if self._is_alone and answer.error is None:
            self._end_body(answer)
        answer.stream.close()
        has_failed = answer.error is not None or isinstance(answer.remote.failure, ClientGone)
        self.tell(Kind.OVER, answer=answer.number, failed=has_failed)

    def _end_body(self, answer: _Given) -> None:
        """Which is the other process' to do, if there is one."""
        try:
            answer.client.write_end()
        except OSError as error:
            answer.error = error


def main(descriptor: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # whole groups of processes get them: this one ends after the other
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Worker(socket.socket(fileno=descriptor)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
