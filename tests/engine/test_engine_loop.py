"""The engine's thread: delivery, aborts in every phase, shutdown, and its death."""

import random
import threading
import time

import numpy as np
import pytest

from tests.toy_engine import make_engine
from tests.toy_runner import ToyRunner, toy_output
from xlaserve.core.outputs import EngineOutput, TokenLogprobs
from xlaserve.core.reading import Pooled
from xlaserve.core.request import Request
from xlaserve.engine import engine_loop
from xlaserve.engine.engine_loop import EngineLoop
from xlaserve.engine.metrics import EngineMetrics
from xlaserve.engine.output_stream import OutputStream
from xlaserve.engine.startup import StartupFacts
from xlaserve.errors import EngineUnavailable, InvalidRequest, Overloaded
from xlaserve.sampling_params import SamplingParams


def make_request(name: str, prompt_ids, max_tokens: int = 5) -> Request:
    prompt_ids = list(prompt_ids)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return Request(name, prompt_ids, params, len(prompt_ids) + max_tokens, stop_ids=frozenset(), seed=0)


class Setup:
    """A running loop over a toy engine."""

    def __init__(self, max_requests: int = 100, **options):
        self.engine, self.runner = make_engine(**options)
        self.metrics = EngineMetrics("toy", self.engine, StartupFacts())
        self.loop = EngineLoop(self.engine, self.metrics, max_requests=max_requests)
        self.blocks_at_start = self.free_blocks()

    def free_blocks(self) -> int:
        return self.engine.scheduler.block_manager.num_free(0)

    def hold(self) -> None:
        """The device stops answering; returns once the loop waits for it."""
        self.runner.released.clear()
        self.loop.submit(make_request("blocker", [1], max_tokens=9))
        assert wait_until(lambda: self.runner.calls["body"] >= 2)


@pytest.fixture
def setup():
    made: list[Setup] = []

    def make(**options) -> Setup:
        made.append(Setup(**options))
        return made[-1]

    yield make
    for one in made:
        one.runner.released.set()
        assert one.loop.shutdown(timeout=0)
        assert one.runner.violations == []


def wait_until(condition, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def read_all(stream: OutputStream) -> tuple[list[int], str | None]:
    """Token ids and finish reason; fails when the end does not come."""
    token_ids: list[int] = []
    while True:
        output = stream.get(timeout=10)
        assert output is not None, f"nothing after {len(token_ids)} tokens"
        token_ids += output.token_ids
        if output.finish_reason:
            return token_ids, output.finish_reason


def test_tokens_arrive_and_the_loop_rests_afterwards(setup):
    one = setup()
    assert one.loop.seconds_since_progress() == 0
    assert read_all(one.loop.submit(make_request("a", [1, 2]))) == (toy_output([1, 2], 5, vocab_size=1000), "length")
    assert wait_until(lambda: one.loop.seconds_since_progress() == 0)
    steps = one.runner.calls["body"]
    time.sleep(0.05)
    assert one.runner.calls["body"] == steps
    assert (one.loop.num_requests, one.free_blocks()) == (0, one.blocks_at_start)


def test_fifty_clients_each_get_all_their_numbers_in_order(setup):
    """Each client reads at its own pace, none holds up another, and the end follows the last token."""
    one = setup(
        num_blocks=[1 + 200], max_num_seqs=16, max_num_batched_tokens=32, next_token=lambda context: context[-1] + 1
    )
    results: dict[int, tuple[list[int], str | None]] = {}

    def client(number: int) -> None:
        rng = random.Random(number)
        time.sleep(rng.random() * 0.05)
        stream = one.loop.submit(make_request(str(number), [number * 1000], max_tokens=200))
        delays = {rng.randrange(200) for _ in range(5)}
        token_ids: list[int] = []
        while True:
            if len(token_ids) in delays:
                time.sleep(rng.random() * 0.02)
            output = stream.get(timeout=30)
            assert output is not None
            token_ids += output.token_ids
            if output.finish_reason:
                results[number] = token_ids, output.finish_reason
                return

    threads = [threading.Thread(target=client, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n: (list(range(n * 1000 + 1, n * 1000 + 201)), "length") for n in range(50)}
    assert one.engine.scheduler.num_preemptions > 0
    assert one.free_blocks() == one.blocks_at_start


def test_abort_of_a_request_that_is_still_in_the_inbox(setup):
    one = setup()
    one.hold()
    stream = one.loop.submit(make_request("a", [1, 2]))
    one.loop.abort(stream)
    one.loop.abort(stream)
    one.runner.released.set()
    assert read_all(stream) == ([], "abort")
    assert wait_until(lambda: one.free_blocks() == one.blocks_at_start)


def test_abort_of_a_waiting_request(setup):
    one = setup(max_num_seqs=1, step_seconds=0.01)
    first = one.loop.submit(make_request("first", [1], max_tokens=30))
    second = one.loop.submit(make_request("second", [2]))
    assert first.get(timeout=5)
    one.loop.abort(second)
    assert read_all(second) == ([], "abort")
    assert len(read_all(first)[0]) == 29
    assert one.free_blocks() == one.blocks_at_start


def test_abort_while_tokens_are_in_flight_or_have_come(setup):
    one = setup(step_seconds=0.005)
    other = one.loop.submit(make_request("other", [3], max_tokens=30))
    stream = one.loop.submit(make_request("a", range(20), max_tokens=200))
    first = stream.get(timeout=5)
    assert first
    one.loop.abort(stream)
    tokens, reason = read_all(stream)
    assert reason == "abort"
    whole = toy_output(range(20), 30, vocab_size=1000)
    assert [*first.token_ids, *tokens] == whole[: 1 + len(tokens)]
    assert read_all(other) == (toy_output([3], 30, vocab_size=1000), "length")
    assert one.free_blocks() == one.blocks_at_start


def test_abort_during_a_long_prompt(setup):
    one = setup(num_blocks=[1 + 100], max_num_batched_tokens=4, step_seconds=0.005)
    stream = one.loop.submit(make_request("a", range(300)))
    assert wait_until(lambda: one.runner.calls["body"] >= 2)
    one.loop.abort(stream)
    assert read_all(stream) == ([], "abort")
    assert one.runner.calls["body"] < 60
    assert wait_until(lambda: one.free_blocks() == one.blocks_at_start)


def test_abort_of_a_finished_request_is_harmless_even_when_its_id_is_in_use_again(setup):
    one = setup()
    stream = one.loop.submit(make_request("a", [1]))
    assert read_all(stream)[1] == "length"
    one.hold()
    again = one.loop.submit(make_request("a", [1]))
    one.loop.abort(stream)
    one.runner.released.set()
    assert read_all(again)[1] == "length"
    assert stream.get(timeout=0) is None


def test_reason_of_an_abort_reaches_the_stream(setup):
    one = setup(step_seconds=0.01)
    stream = one.loop.submit(make_request("a", [1], max_tokens=100))
    one.loop.abort(stream, "stop")
    assert read_all(stream)[1] == "stop"


def test_ids_in_use_and_requests_beyond_the_limit_are_refused(setup):
    one = setup(max_requests=2)
    one.hold()
    with pytest.raises(InvalidRequest, match="'blocker' is in use"):
        one.loop.submit(make_request("blocker", [1]))
    stream = one.loop.submit(make_request("a", [1]))
    with pytest.raises(Overloaded) as refused:
        one.loop.submit(make_request("b", [1]))
    assert refused.value.code == "queue_full"
    one.runner.released.set()
    assert read_all(stream)[1] == "length"


def test_shutdown_ends_what_runs_and_refuses_what_comes(setup):
    one = setup(step_seconds=0.01, max_num_seqs=1)
    running, waiting = (one.loop.submit(make_request(name, [1], max_tokens=250)) for name in ("a", "b"))
    assert running.get(timeout=5)
    assert one.loop.shutdown(timeout=0)
    assert read_all(running)[1] == "abort"
    assert read_all(waiting) == ([], "abort")
    with pytest.raises(EngineUnavailable, match="shutting down"):
        one.loop.submit(make_request("c", [1]))
    assert one.loop.state == "draining"
    assert one.free_blocks() == one.blocks_at_start


def test_shutdown_lets_requests_end_in_the_time_it_gives(setup):
    one = setup(step_seconds=0.005)
    stream = one.loop.submit(make_request("a", [1], max_tokens=20))
    assert one.loop.shutdown(timeout=10)
    assert read_all(stream) == (toy_output([1], 20, vocab_size=1000), "length")


def test_step_that_hangs_is_visible_and_does_not_hold_up_clients_at_shutdown(setup, monkeypatch):
    monkeypatch.setattr(engine_loop, "JOIN_SECONDS", 0.05)
    one = setup()
    one.hold()
    stream = one.loop.submit(make_request("a", [1]))
    assert wait_until(lambda: one.loop.seconds_since_progress() > 0.02)
    assert not one.loop.shutdown(timeout=0)
    assert read_all(stream) == ([], "abort")
    monkeypatch.setattr(engine_loop, "JOIN_SECONDS", 5)
    one.runner.released.set()
    assert one.loop.shutdown(timeout=0)


def test_death_of_the_thread_reaches_every_client(setup):
    """SystemExit is no Exception: nothing in the engine catches it."""
    one = setup(failure=SystemExit("killed"), fail_at=[("body", 3)], max_num_seqs=1)
    streams = [one.loop.submit(make_request(name, [1], max_tokens=9)) for name in ("running", "waiting")]
    assert [read_all(stream)[1] for stream in streams] == ["error", "error"]
    assert one.loop.state == "failed"
    with pytest.raises(EngineUnavailable, match="failed"):
        one.loop.submit(make_request("c", [1]))


def test_failed_engine_ends_the_loop(setup):
    one = setup(fail_at=[("body", n) for n in range(100)])
    assert read_all(one.loop.submit(make_request("a", [1]))) == ([], "error")
    assert wait_until(lambda: one.loop.state == "failed")
    with pytest.raises(EngineUnavailable):
        one.loop.submit(make_request("b", [1]))


def test_one_failed_step_is_not_seen_by_clients(setup):
    one = setup(fail_at=[("result", 3)])
    assert read_all(one.loop.submit(make_request("a", [1, 2]))) == (toy_output([1, 2], 5, vocab_size=1000), "length")
    assert isinstance(one.runner, ToyRunner)
    assert (one.runner.num_rebuilds, one.loop.state) == (1, "ready")


def test_a_call_runs_between_two_steps_and_its_outputs_are_delivered(setup):
    one = setup()
    stream = one.loop.submit(make_request("a", range(5), max_tokens=50))

    def end_all(engine):
        return engine.finish_all("abort", "as ordered")

    one.loop.call(end_all)
    tokens, reason = read_all(stream)
    assert (reason, len(tokens) < 50) == ("abort", True)


def test_a_call_raises_what_it_raised_and_the_loop_goes_on(setup):
    one = setup()

    def fail(engine):
        raise ValueError("as ordered")

    with pytest.raises(ValueError, match="as ordered"):
        one.loop.call(fail)
    assert read_all(one.loop.submit(make_request("a", [1]))) == (toy_output([1], 5, vocab_size=1000), "length")


def test_a_call_of_an_engine_that_hangs_or_has_ended_is_not_waited_for(setup, monkeypatch):
    monkeypatch.setattr(engine_loop, "CALL_SECONDS", 0.3)
    one = setup()
    one.hold()
    called = []
    with pytest.raises(EngineUnavailable):
        one.loop.call(lambda engine: called.append(1) or [])
    one.runner.released.set()
    one.loop.call(lambda engine: [])
    assert called == [], "later neither"
    one.loop.shutdown(timeout=0)
    with pytest.raises(EngineUnavailable):
        one.loop.call(lambda engine: [])


def test_deadlines_pass_while_no_step_is_made(setup):
    one = setup()
    one.loop.call(lambda engine: engine.pause())
    request = make_request("a", [1])
    request.deadline = time.monotonic() + 0.05
    assert read_all(one.loop.submit(request)) == ([], "timeout")
    later = one.loop.submit(make_request("b", [1]))
    one.loop.call(lambda engine: engine.resume())
    assert read_all(later)[1] == "length"


def test_old_weights_go_with_the_last_request_that_has_them(setup):
    """Though nothing else comes to wake the loop."""
    one = setup(step_seconds=0.002)
    stream = one.loop.submit(make_request("a", [1], max_tokens=20))
    one.runner.add_weights(1, None)
    one.loop.call(lambda engine: engine.use_weights(1, recompute=False))
    assert sorted(one.runner.weights) in ([0, 1], [1])
    assert read_all(stream)[1] == "length"
    assert wait_until(lambda: list(one.runner.weights) == [1])


def test_a_late_reader_gets_what_has_come_as_one_output():
    outputs = [
        EngineOutput("a", (1,), (TokenLogprobs(-1.0, ()),), read=Pooled(np.zeros(2))),
        EngineOutput("a", (2, 3), (TokenLogprobs(-2.0, ()), TokenLogprobs(-3.0, ()))),
        EngineOutput("a", (4,), (TokenLogprobs(-4.0, ()),), "stop", 4),
    ]
    stream = OutputStream(make_request("a", [1]))
    assert stream.get(timeout=0) is None
    for output in outputs:
        stream.put(output)
    got = stream.get()
    assert got is not None
    assert (got.request_id, got.token_ids, got.finish_reason, got.stop_reason) == ("a", (1, 2, 3, 4), "stop", 4)
    assert [each.logprob for each in got.logprobs or ()] == [-1.0, -2.0, -3.0, -4.0]
    assert got.read is outputs[0].read
    assert stream.get(timeout=0) is None
