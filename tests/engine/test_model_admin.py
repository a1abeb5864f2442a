"""Swaps on a running loop: what is under way, what waits, what a bad checkpoint changes (nothing), who is refused."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.test_engine_loop import make_request, read_all, wait_until
from tests.server.toy_service import make_toy_service
from tests.toy_engine import make_engine
from tests.toy_runner import toy_output
from tests.toy_store import ToyStore
from xlaserve.engine.engine_loop import EngineLoop
from xlaserve.engine.metrics import EngineMetrics
from xlaserve.engine.model_admin import ModelAdmin, SwapPolicy
from xlaserve.engine.startup import StartupFacts
from xlaserve.errors import EngineUnavailable, InvalidRequest, ModelAsleep
from xlaserve.sampling_params import BeamSearchParams, SamplingParams

VOCAB = 1000


class Setup:
    """A running loop whose weights can be replaced by those of the files in `folder`."""

    def __init__(self, folder: Path, *, both_fit: bool = True, **options):
        self.engine, self.runner = make_engine(**options)
        metrics = EngineMetrics("toy", self.engine, StartupFacts())
        self.loop = EngineLoop(self.engine, metrics, max_requests=100)
        self.store = ToyStore(self.runner, both_fit)
        self.admin = ModelAdmin(self.loop, self.engine, metrics, self.store)
        self.fine, self.bad_header, self.bad_data = (folder / name for name in ("fine", "header", "data"))
        for path, text in ((self.fine, ""), (self.bad_header, "header too short"), (self.bad_data, "cut off")):
            path.write_text(text)

    def begin(self, name: str, prompt_ids, max_tokens: int = 40):
        """A stream that has given its first token, and what it gives by the weights of a version."""
        stream = self.loop.submit(make_request(name, prompt_ids, max_tokens))
        assert wait_until(lambda: stream.request.num_output_tokens > 0)
        return stream


@pytest.fixture
def setup(tmp_path):
    made: list[Setup] = []

    def make(**options) -> Setup:
        options.setdefault("step_seconds", 0.002)
        made.append(Setup(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.runner.released.set()
        one.store.reading.set()
        assert one.loop.shutdown(timeout=0)
        assert one.runner.violations == []


def texts(prompt_ids, max_tokens: int, versions) -> list[list[int]]:
    return [toy_output(prompt_ids, max_tokens, vocab_size=VOCAB, weights=version) for version in versions]


BOTH_WAYS = pytest.mark.parametrize("both_fit", [True, False])


@BOTH_WAYS
def test_drain_lets_old_requests_finish_and_new_ones_begin(setup, both_fit):
    one = setup(both_fit=both_fit)
    old = one.begin("old", [1])
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(one.admin.swap, one.fine, "drain", 60.0)
        assert wait_until(lambda: one.engine.scheduler.weights.newest == 1)
        new = one.loop.submit(make_request("new", [1], 40))
        assert [read_all(old), read_all(new)] == [(text, "length") for text in texts([1], 40, (0, 1))]
        report = swapping.result()
    assert (report.weights_version, report.num_ended) == (1, 0)
    assert list(one.runner.weights) == [1]
    assert one.store.most_at_once == (2 if both_fit else 1)
    assert one.admin.source == str(one.fine)


@BOTH_WAYS
def test_a_drain_is_bounded_in_time(setup, both_fit):
    one = setup(both_fit=both_fit, num_blocks=(500,))
    old = one.begin("old", [1], 1500)
    report = one.admin.swap(one.fine, "drain", 0.05)
    assert report.num_ended == 1
    tokens, reason = read_all(old)
    assert reason == "abort"
    assert tokens == texts([1], 1500, [0])[0][: len(tokens)]
    assert read_all(one.loop.submit(make_request("new", [1], 4))) == (texts([1], 4, [1])[0], "length")


@BOTH_WAYS
def test_recompute_goes_on_with_the_new_weights(setup, both_fit):
    one = setup(both_fit=both_fit)
    old = one.begin("old", [1], 100)
    one.admin.swap(one.fine, "recompute", 60.0)
    tokens, reason = read_all(old)
    before = next(n for n in range(100, -1, -1) if tokens[:n] == texts([1], n, [0])[0])
    assert 0 < before < 100
    assert (tokens[before:], reason) == (texts([1, *tokens[:before]], 100 - before, [1])[0], "length")


@BOTH_WAYS
def test_abort_ends_what_runs(setup, both_fit):
    one = setup(both_fit=both_fit, max_num_seqs=1)
    old = one.begin("old", [1])
    waiting = one.loop.submit(make_request("waiting", [1], 4))
    report = one.admin.swap(one.fine, "abort", 60.0)
    assert report.num_ended == 1
    assert read_all(old)[1] == "abort"
    assert read_all(waiting) == (texts([1], 4, [1])[0], "length")


@BOTH_WAYS
@pytest.mark.parametrize("policy", ["drain", "recompute", "abort"])
@pytest.mark.parametrize(("fault", "told"), [("bad_header", "too short"), ("bad_data", "cut off")])
def test_a_bad_checkpoint_leaves_the_old_weights_serving(setup, both_fit, policy, fault, told):
    """Where both do not fit the data is only read when the old weights are gone: they are read again."""
    one = setup(both_fit=both_fit)
    with pytest.raises(InvalidRequest, match=told) as caught:
        one.admin.swap(getattr(one, fault), policy, 60.0)
    assert (caught.value.status, caught.value.param) == (400, "path")
    [weights] = one.runner.weights.values()
    assert weights in (None, "at start")
    assert one.admin.source == "at start"
    tokens, reason = read_all(one.loop.submit(make_request("after", [1], 4)))
    assert (len(tokens), reason) == (4, "length")


def test_requests_go_on_while_a_checkpoint_is_read_and_a_second_order_is_refused(setup):
    one = setup()
    one.store.reading.clear()
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(one.admin.swap, one.fine, "drain", 60.0)
        assert wait_until(one.admin._order.locked)
        assert read_all(one.loop.submit(make_request("a", [1], 4)))[1] == "length"
        with pytest.raises(InvalidRequest) as caught:
            one.admin.swap(one.fine, "drain", 60.0)
        assert caught.value.status == 409
        one.store.reading.set()
        assert swapping.result().weights_version == 1
    assert one.admin.swap(one.fine, "drain", 60.0).weights_version == 2


def test_when_neither_weights_can_be_read_everybody_is_told(setup, monkeypatch):
    one = setup(both_fit=False)

    def lost(version: int) -> None:
        raise OSError("gone")

    monkeypatch.setattr(one.store, "reload", lost)
    waiting = []

    def fail_to_read(checkpoint, version):
        waiting.append(one.loop.submit(make_request("waiting", [1], 4)))
        raise MemoryError

    monkeypatch.setattr(one.store, "load", fail_to_read)
    with pytest.raises((MemoryError, EngineUnavailable)):
        one.admin.swap(one.fine, "drain", 60.0)
    assert read_all(waiting[0])[1] == "error"
    assert wait_until(lambda: one.loop.state == "failed")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_swapped_under_load_every_text_is_of_one_version(setup, seed):
    """Policies and memory by chance; eight clients. Under `recompute` a text has parts, each of later weights."""
    rng = random.Random(seed)
    one = setup(step_seconds=0.0005, num_blocks=(60,), async_scheduling=bool(seed % 2))
    policies: dict[int, SwapPolicy] = {}
    done = threading.Event()
    ended: list[tuple[list[int], list[int], str | None]] = []

    def client(number: int) -> None:
        clients = random.Random(100 * seed + number)
        count = 0
        while not done.is_set():
            count += 1
            prompt = [clients.randrange(5)] * clients.randrange(1, 9)
            stream = one.loop.submit(make_request(f"{number} {count}", prompt, clients.randrange(1, 30)))
            tokens, reason = read_all(stream)
            ended.append((prompt, tokens, reason))

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client, number) for number in range(8)]
        for version in range(1, 9):
            time.sleep(rng.random() * 0.03)
            one.store.both_fit = rng.random() < 0.5
            policies[version] = rng.choice(("drain", "recompute", "abort"))
            report = one.admin.swap(one.fine, policies[version], 60.0)
            assert report.num_ended == 0 or policies[version] == "abort"
        done.set()
        for each in clients:
            each.result(timeout=20)
    assert len(ended) >= 8
    for prompt, tokens, reason in ended:
        assert reason == "length" or (reason == "abort" and "abort" in policies.values())
        assert is_of(prompt, tokens, policies), (prompt, tokens)
    assert list(one.runner.weights) == [8]


def is_of(prompt: list[int], tokens: list[int], policies: dict[int, SwapPolicy]) -> bool:
    """Whether the tokens are of one version, or go on with each next one that was to be gone on with."""

    def rest_is_of(version: int, start: int) -> bool:
        context = [*prompt, *tokens[:start]]
        own = texts(context, len(tokens) - start, [version])[0]
        same = next((n for n, pair in enumerate(zip(own, tokens[start:], strict=True)) if pair[0] != pair[1]), len(own))
        if start + same == len(tokens):
            return True
        following = (later for later in policies if later > version)
        return any(policies[later] == "recompute" and rest_is_of(later, start + same) for later in following)

    return any(rest_is_of(version, 0) for version in range(len(policies) + 1))


@pytest.mark.parametrize("level", [1, 2])
def test_a_model_that_sleeps_refuses_requests_until_it_is_woken(setup, level):
    one = setup()
    before = one.loop.submit(make_request("before", range(16), 1))
    assert read_all(before)[1] == "length"
    one.admin.sleep(level, 10.0)
    assert (one.admin.asleep, one.runner.asleep, one.loop.state) == (level, level, "asleep")
    with pytest.raises(ModelAsleep):
        one.loop.submit(make_request("refused", [1]))
    with pytest.raises(InvalidRequest) as caught:
        one.admin.swap(one.fine, "drain", 10.0)
    assert caught.value.status == 409
    one.admin.wake()
    assert (one.admin.asleep, one.loop.state) == (0, "ready")
    after = one.loop.submit(make_request("after", range(16), 2))
    assert read_all(after) == (texts(range(16), 2, [level // 2])[0], "length")
    assert after.request.num_cached_tokens == (15 if level == 1 else 0), "what is cached is kept as the pool is"
    assert list(one.runner.weights) == [level // 2]


def test_it_sleeps_deeper_and_orders_twice_change_nothing(setup):
    one = setup()
    one.admin.wake()
    for level in (1, 1, 2, 1):
        one.admin.sleep(level, 10.0)
    assert (one.admin.asleep, one.runner.weights) == (2, {})
    one.admin.wake()
    one.admin.wake()
    assert read_all(one.loop.submit(make_request("after", [1], 3))) == (texts([1], 3, [1])[0], "length")


def test_what_runs_may_finish_before_it_sleeps_but_not_for_ever(setup):
    one = setup(num_blocks=(500,))
    for timeout, length, reason in ((20.0, 30, "length"), (0.05, 1500, "abort")):
        running = one.begin("running", [1], length)
        one.admin.sleep(1, timeout)
        tokens, ended = read_all(running)
        assert (ended, tokens) == (reason, texts([1], length, [0])[0][: len(tokens)])
        assert reason == "length" or len(tokens) < length
        one.admin.wake()
    assert read_all(one.loop.submit(make_request("after", [1], 3)))[1] == "length"


def test_a_model_whose_weights_are_lost_sleeps_on_and_can_be_woken_later(setup):
    one = setup()
    one.admin.sleep(2, 10.0)
    one.store.current.fault = "gone"
    with pytest.raises(EngineUnavailable, match=r"sleeps on.*gone"):
        one.admin.wake()
    assert (one.admin.asleep, one.loop.state) == (2, "asleep")
    one.store.current.fault = ""
    one.admin.wake()
    assert read_all(one.loop.submit(make_request("after", [1], 3))) == (texts([1], 3, [1])[0], "length")


def test_a_search_does_not_go_on_in_its_sleep(setup):
    one = setup()
    first = make_request("first", [1], 1)
    first.keeps_rows = 2
    assert read_all(one.loop.submit(first))[1] == "length"
    one.admin.sleep(1, 0.05)
    following = make_request("second", [1, 2], 1)
    following.continues = first
    assert read_all(one.loop.submit(following))[1] == "abort"
    one.loop.close(first)
    one.admin.wake()


def test_shutdown_ends_one_that_sleeps(setup):
    one = setup()
    one.admin.sleep(2, 10.0)
    assert one.loop.shutdown(timeout=0)
    with pytest.raises(EngineUnavailable):
        one.admin.wake()


@pytest.mark.parametrize("level", [1, 2])
def test_an_idle_model_falls_asleep_and_any_request_wakes_it(level, tmp_path):
    service, runner = make_toy_service(b"hello", make_store=ToyStore, sleep_after=0.1, sleep_level=level)
    try:
        for _ in range(3):
            assert wait_until(lambda: service.asleep == level)
            assert service.wakes_itself
            with ThreadPoolExecutor(8) as pool:
                asked = [pool.submit(service.submit, [1], SamplingParams(temperature=0)) for _ in range(8)]
                for each in asked:
                    assert "".join(delta.text for delta in each.result()) == "hello"
        assert wait_until(lambda: service.asleep == level)
        best = service.beam_search([1], BeamSearchParams(beam_width=2, max_tokens=3))
        assert best.next(timeout=10) is not None
    finally:
        assert service.shutdown(timeout=0)
    assert runner.violations == []


def test_no_request_meets_a_closed_door(tmp_path):
    """However often it falls asleep meanwhile: requests come just when it has been idle for long enough."""
    service, runner = make_toy_service(b"hello", make_store=ToyStore, sleep_after=0.01)
    slept = 0
    try:
        for number in range(60):
            time.sleep(0.0005 * (number % 40))
            slept += service.asleep
            assert "".join(delta.text for delta in service.submit([1], SamplingParams(temperature=0))) == "hello"
    finally:
        assert service.shutdown(timeout=0)
    assert runner.violations == []
    assert slept > 0


def test_one_laid_to_sleep_by_order_is_not_woken_by_a_request():
    service, _ = make_toy_service(b"hello", make_store=ToyStore, sleep_after=0.1)
    try:
        assert service.admin is not None
        assert wait_until(lambda: service.asleep == 1)
        service.admin.sleep(1, 1.0)
        assert not service.wakes_itself
        with pytest.raises(ModelAsleep):
            service.submit([1], SamplingParams(temperature=0))
        service.admin.wake()
        assert "".join(delta.text for delta in service.submit([1], SamplingParams(temperature=0))) == "hello"
    finally:
        assert service.shutdown(timeout=0)


def test_no_order_is_refused_for_somebody_looks_whether_the_model_is_idle():
    def look(admin: ModelAdmin) -> None:
        for _ in range(3000):
            admin.sleep_if_idle(1e6, 1)

    service, _ = make_toy_service(b"hello", make_store=ToyStore)
    admin = service.admin
    assert admin is not None
    looking = [threading.Thread(target=look, args=(admin,)) for _ in range(2)]
    for thread in looking:
        thread.start()
    while any(thread.is_alive() for thread in looking):
        admin.wake()
    assert service.shutdown(timeout=0)
