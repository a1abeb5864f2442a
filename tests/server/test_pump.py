"""The thread that writes the events of all streams."""

import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.server.harness import wait_until
from tests.server.toy_service import make_toy_service
from xlaserve.engine.generations import Generations
from xlaserve.sampling_params import SamplingParams
from xlaserve.server import pump as pump_module
from xlaserve.server.pump import Pump
from xlaserve.server.sse import EventStream

SCRIPT = b"one two three four five six"


@pytest.fixture
def service():
    made, runner = make_toy_service(SCRIPT)
    yield made
    assert made.shutdown(timeout=0)
    assert runner.violations == []


@pytest.fixture
def pump():
    made = Pump()
    yield made
    made.stop()


class Client:
    def __init__(self):
        self.got: list[bytes] = []
        self.is_full = False
        self.is_gone = False

    def write(self, data: bytes) -> None:
        if self.is_gone:
            raise BrokenPipeError
        self.got.append(data)

    @property
    def text(self) -> bytes:
        return b"".join(self.got)


def stream_of(service) -> EventStream:
    generations = Generations(service, [[65]], SamplingParams(temperature=0, max_tokens=None), uuid.uuid4().hex)

    def pieces() -> Iterator[bytes]:
        while not generations.is_over:
            yield b"".join(delta.text.encode() for _, delta in generations.new())

    return EventStream(generations, pieces(), generations.abort)


def sent(pump: Pump, stream: EventStream, client: Client) -> threading.Thread:
    thread = threading.Thread(target=pump.send, args=(stream, client), daemon=True)
    thread.start()
    return thread


def test_many_at_a_time(service, pump):
    clients = [Client() for _ in range(12)]  # more than run at a time
    threads = [sent(pump, stream_of(service), client) for client in clients]
    for thread in threads:
        thread.join(10)
    assert [client.text for client in clients] == [SCRIPT] * 12


def test_news_are_heard_without_a_look(service, monkeypatch):
    monkeypatch.setattr(pump_module, "LOOK_SECONDS", 60.0)
    pump, client = Pump(), Client()
    sent(pump, stream_of(service), client).join(10)
    assert client.text == SCRIPT
    pump.stop()


def test_a_client_that_takes_nothing_holds_up_no_other_and_gets_all_later(service, pump, monkeypatch):
    monkeypatch.setattr(pump_module, "LOOK_SECONDS", 0.02)
    slow, quick = Client(), Client()
    slow.is_full = True
    held = stream_of(service)
    thread = sent(pump, held, slow)
    sent(pump, stream_of(service), quick).join(10)
    assert (quick.text, slow.got) == (SCRIPT, [])
    assert wait_until(lambda: service.stats()["running"] == 0)
    slow.is_full = False
    thread.join(10)
    assert slow.got == [SCRIPT]  # in one piece: all of it was there


def test_a_client_that_has_gone_is_told_to_who_waits(service, pump):
    client = Client()
    client.is_gone = True
    with pytest.raises(BrokenPipeError):
        pump.send(stream_of(service), client)
    other = Client()
    pump.send(stream_of(service), other)
    assert other.text == SCRIPT
    assert wait_until(lambda: service.stats()["running"] == 0)  # nobody has aborted the first one
    assert wait_until(lambda: not pump._answers)


def test_nobody_waits_for_a_pump_that_has_stopped(service, monkeypatch):
    monkeypatch.setattr(pump_module, "LOOK_SECONDS", 0.02)
    stopped = Pump()
    stopped.stop()
    with pytest.raises(RuntimeError, match="closed before"):
        stopped.send(stream_of(service), Client())
