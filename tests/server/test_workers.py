"""Workers: clients that are slow or gone, one side or the other that dies."""

import http.client
import os
import signal
import socket
import threading
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.harness import wait_until
from tests.server.toy_service import make_toy_service
from tests.toys import byte_tokenizer
from xlaserve.core.outputs import EngineOutput
from xlaserve.engine.model_info import ModelInfo
from xlaserve.errors import ConfigError
from xlaserve.server.jobs import completion_job
from xlaserve.server.pump import FULL_BYTES
from xlaserve.server.workers import worker as worker_module
from xlaserve.server.workers.client import Client
from xlaserve.server.workers.frames import VERSION, FrameReader, Kind, WrongVersion, frame, json_frame
from xlaserve.server.workers.outputs import encode_outputs
from xlaserve.server.workers.program import Worker as Program
from xlaserve.server.workers.program import _Model
from xlaserve.server.workers.recipes import describe
from xlaserve.server.workers.worker import Worker
from xlaserve.server.workers.workers import Workers

STREAM = {"model": "toy", "prompt": "hi", "stream": True, "max_tokens": 80}


@pytest.fixture
def workers():
    made = Workers(2)
    yield made
    made.stop()


@pytest.fixture
def sent(monkeypatch):
    """The workers that have been given an answer, one entry for each."""
    given, send = [], Worker.send

    def spy(self, *args, **kwargs):
        given.append(self)
        return send(self, *args, **kwargs)

    monkeypatch.setattr(worker_module.Worker, "send", spy)
    return given


def two_streams(server, stack: ExitStack, sent: list) -> list[http.client.HTTPConnection]:
    """Under way, each with a worker of its own."""
    streams = []
    for count in (1, 2):
        streams.append(stack.enter_context(server.open("/v1/completions", STREAM)))
        assert wait_until(lambda count=count: len(sent) == count and sent[-1].num_answers == 1, 10)
    assert sent[0] is not sent[1]
    return streams


def test_streams_are_written_by_the_worker_with_the_fewest(make_live, sent):
    server = make_live(b"x" * 500, step_seconds=0.1)
    with ExitStack() as stack:
        first, _ = two_streams(server, stack, sent)
        assert b"data: " in first.getresponse().read(100)
    assert server.complete().status == 200
    assert len(sent) == 2  # what is not streamed is none of theirs


def test_a_worker_has_no_jax(make_live, sent):
    server = make_live()
    assert server.complete(stream=True).events[-1]["choices"][0]["finish_reason"] == "stop"
    maps = Path(f"/proc/{sent[0].process.pid}/maps").read_text()
    assert "pydantic" in maps
    assert not any(name in maps for name in ("jax", "torch", "libtpu", "xlaserve_kernels"))


def test_a_stop_string_ends_the_request_in_the_engine(make_live, sent):
    server = make_live(b"abcdefghij" * 5, step_seconds=0.02)
    *_, last = server.complete(stream=True, stop=["ef"]).events
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", "ef")
    assert wait_until(lambda: server.service.stats()["running"] == 0)
    assert b'request_success_total{finished_reason="stop",model_name="toy"} 1.0' in server.get("/metrics").body
    assert sent


def test_a_worker_that_dies_takes_its_streams_along_and_no_others(make_live, workers, sent):
    server = make_live(b"x" * 500, step_seconds=0.05)
    free = server.service.free_blocks()
    with ExitStack() as stack:
        lost, kept = two_streams(server, stack, sent)
        answer = lost.getresponse()
        assert answer.read(10)
        os.kill(sent[0].process.pid, signal.SIGKILL)
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
        assert kept.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert wait_until(lambda: server.service.free_blocks() == free)
    assert wait_until(lambda: len({id(worker) for worker in workers._ready()} - {id(sent[0])}) == 2, 30)
    dead = sent[0]
    sent.clear()
    with ExitStack() as stack:
        two_streams(server, stack, sent)
        assert dead not in sent


def test_a_stream_is_written_here_while_no_worker_is_there(make_live, sent, monkeypatch):
    server = make_live()
    monkeypatch.setattr(Worker, "is_ready", False)
    assert server.complete(stream=True).events[-1]["choices"][0]["finish_reason"] == "stop"
    assert not sent


def test_a_worker_that_hangs_is_ended(make_live, sent, monkeypatch):
    monkeypatch.setattr(worker_module, "END_SECONDS", 0.2)
    server = make_live(b"x" * 500, step_seconds=0.05)
    with server.open("/v1/completions", STREAM) as connection:
        assert connection.getresponse().read(10)
        os.kill(sent[0].process.pid, signal.SIGSTOP)
    assert wait_until(lambda: sent[0].process.poll() is not None, 10)


def test_a_stored_response_is_there_before_its_client_knows(make_live, sent):
    server = make_live()
    body = server.post("/v1/responses", {"model": "toy", "input": "hi", "stream": True}).body
    response_id = body.decode().split('"id":"')[1].split('"')[0]
    assert response_id.startswith("resp_")
    assert server.get(f"/v1/responses/{response_id}").json["status"] == "completed"
    assert sent


# a worker itself, on a thread of this process


class Other:
    """The engine's process, as a worker sees it."""

    def __init__(self):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(10)
        self._heard = deque()
        self._reader = FrameReader(self.socket)
        self._thread = threading.Thread(target=Program(theirs).run, daemon=True)
        self._thread.start()
        self._theirs = theirs
        tokenizer = byte_tokenizer()
        info = ModelInfo("toy", 10**6, tokenizer.vocab_size, 10**6, tokenizer.eos_ids)
        self.model = _Model(info, tokenizer)
        told = {"info": vars(info) | {"eos_ids": []}, "tokenizer": tokenizer.to_json()}
        self.tell(json_frame(Kind.MODEL, told))
        assert self.hear() == Kind.READY

    def tell(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hear(self) -> Kind:
        while not self._heard:
            assert self._reader.read()
            self._heard.extend(self._reader.frames())
        return self._heard.popleft()[0]

    def answer(self, number: int, client: socket.socket, kind: str = "completion", **fields) -> None:
        """One whose generation has the same number."""
        job = completion_job(self.model, {"model": "toy", "prompt": "hi", "stream": True} | fields)
        told = {
            "answer": number,
            "first": number,
            "chunked": False,
            "model": "toy",
            "recipe": describe(job) | {"kind": kind},
        }
        data = json_frame(Kind.ANSWER, told)
        sent = socket.send_fds(self.socket, [data], [client.fileno()])
        self.tell(data[sent:])
        client.close()

    def say(self, *numbers: int, text: bytes = b"a", end: str | None = None) -> None:
        entries = [(number, EngineOutput("", tuple(text), finish_reason=end), None) for number in numbers]
        self.tell(frame(Kind.OUTPUTS, encode_outputs(entries)))

    def close(self) -> None:
        self.socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._theirs.close()


@pytest.fixture
def other():
    made = Other()
    yield made
    made.close()


def client_pair() -> tuple[socket.socket, socket.socket]:
    """The client's side, and what is written to it."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    return ours, theirs


def read_until(sock: socket.socket, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        data = sock.recv(2**16)
        assert data, got
        got += data
    return got


def test_a_slow_client_gets_all_and_holds_up_nobody(other):
    slow, theirs = client_pair()
    quick, others = client_pair()
    with slow, quick:
        other.answer(1, theirs)
        other.answer(2, others)
        for _ in range(10):  # more than the sockets and FULL_BYTES take together
            other.say(1, text=b"b" * FULL_BYTES)
            other.say(2)
        other.say(2, text=b"", end="length")
        assert read_until(quick, b"[DONE]\n\n").count(b"a") >= 10
        assert other.hear() == Kind.OVER
        other.say(1, text=b"", end="length")
        assert read_until(slow, b"[DONE]\n\n").count(b"b") >= 10 * FULL_BYTES
        assert other.hear() == Kind.OVER


def test_a_client_that_goes_ends_its_answer_only(other):
    gone, theirs = client_pair()
    there, others = client_pair()
    with there:
        other.answer(1, theirs)
        other.answer(2, others)
        gone.close()
        other.say(1, 2)
        assert other.hear() == Kind.OVER
        other.say(1, 2, end="stop")
        assert b'"finish_reason":"stop"' in read_until(there, b"[DONE]\n\n")


def test_an_answer_that_cannot_be_begun_costs_no_other(other, caplog):
    client, theirs = client_pair()
    there, others = client_pair()
    with client, there:
        other.answer(1, theirs, kind="unheard of")
        assert other.hear() == Kind.OVER
        assert client.recv(1) == b""
        other.answer(2, others)
        other.say(2, end="stop")
        assert b'"finish_reason":"stop"' in read_until(there, b"[DONE]\n\n")
    assert "could not be begun" in caplog.text


def test_a_stop_string_aborts(other):
    client, theirs = client_pair()
    with client:
        other.answer(1, theirs, stop=["no"])
        other.say(1, text=b"yes no more")
        assert b'"text":"yes "' in read_until(client, b"[DONE]\n\n")
        assert [other.hear(), other.hear()] == [Kind.ABORT, Kind.OVER]


def test_an_error_is_an_event(other):
    client, theirs = client_pair()
    with client:
        other.answer(1, theirs)
        other.tell(json_frame(Kind.END, {"answer": 1, "error": ("EngineUnavailable", "It hangs.")}))
        assert b'"message": "It hangs.", "type": "server_error"' in read_until(client, b"[DONE]\n\n")
        assert {other.hear(), other.hear()} == {Kind.ABORT, Kind.OVER}


def test_a_client_that_takes_no_error_is_given_up(other, monkeypatch):
    monkeypatch.setattr("xlaserve.server.workers.program.CLOSE_SECONDS", 0.1)
    client, theirs = client_pair()
    with client:
        other.answer(1, theirs)
        for _ in range(20):
            other.say(1, text=b"b" * FULL_BYTES)
        other.tell(json_frame(Kind.END, {"answer": 1, "error": ("EngineUnavailable", "It hangs.")}))
        assert other.hear() == Kind.OVER


def test_clients_are_told_when_the_engine_has_gone():
    other = Other()
    client, theirs = client_pair()
    with client:
        other.answer(1, theirs)
        other.say(1)
        read_until(client, b"\n\n")
        other.close()
        assert b"The server has ended" in read_until(client, b"[DONE]\n\n")
        assert client.recv(1) == b""


# its parts


def test_a_client_takes_what_it_has_room_for():
    ours, theirs = client_pair()
    wants = []
    with ours:
        client = Client(theirs, chunked=True, wants_room=wants.append)
        while client.is_empty:
            client.write(b"x" * 2**16)
        while not client.is_full:
            client.write(b"x" * 2**16)
        assert wants == [True]
        while not client.is_empty:
            assert ours.recv(2**20)
            client.flush()
        assert wants == [True, False]
        client.hold()
        client.write(b"kept")
        ours.setblocking(False)
        while True:
            try:
                assert b"kept" not in ours.recv(2**20)
            except BlockingIOError:
                break
        client.release()
        client.write_end()
        assert ours.recv(100) == b"4\r\nkept\r\n0\r\n\r\n"
        client.close()
        assert wants == [True, False]


def test_frames_come_in_any_pieces():
    ours, theirs = client_pair()
    with ours, theirs:
        reader = FrameReader(theirs)
        data = json_frame(Kind.END, {"a": 1}) + frame(Kind.OUTPUTS, b"") + frame(Kind.OVER, b"x" * 1000)
        got = []
        for at in range(0, len(data), 7):
            ours.sendall(data[at : at + 7])
            assert reader.read()
            got += reader.frames()
        assert [kind for kind, _ in got] == [Kind.END, Kind.OUTPUTS, Kind.OVER]
        assert [len(body) for _, body in got] == [8, 0, 1000]
        ours.sendall(bytes([0, 0, 0, 0, VERSION + 1, Kind.OVER]))
        assert reader.read()
        with pytest.raises(WrongVersion):
            list(reader.frames())
        ours.shutdown(socket.SHUT_WR)
        assert not reader.read()


def test_a_server_without_workers_ready_says_so(monkeypatch):

    monkeypatch.setattr("xlaserve.server.workers.workers.READY_SECONDS", 0.0)
    monkeypatch.setattr(Worker, "is_ready", False)
    service = make_toy_service(b"")[0]
    workers = Workers(1)
    try:
        with pytest.raises(ConfigError, match="api_workers"):
            workers.prepare([service])
    finally:
        workers.stop()
        service.shutdown(timeout=0)
