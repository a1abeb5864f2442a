"""Serving with one body while the others are made: the same ids, no request that waits, and what fails is left out."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import greedy, ids, runner_of, start
from tests.engine.test_prompt_logprobs import expect_transformers, scoring
from tests.server.harness import LiveServer, served
from tests.tiny_models import LENGTHS, prompts
from xlaserve.engine import bundled
from xlaserve.engine.llm import LLM
from xlaserve.runner.compilations import LOG

WAIT = 60.0  # seconds
SIZES = {"scheduler__max_num_seqs": 4, "scheduler__max_num_batched_tokens": 48}
FIRST, *LATER = 4, 24, 48  # the bodies of these sizes
EXPECTED = tiny_models.greedy("llama", LENGTHS)


class Gates:
    """What comes late waits for its gate, as if it took long to compile: a body for that of its size."""

    def __init__(self):
        self.gates = {name: threading.Event() for name in (FIRST, *LATER, "heads")}
        self.broken: set[int] = set()

    def slow(self, makers: dict, reason: str) -> dict:
        return {key: self._behind(*key, make) for key, make in makers.items()} if reason == "background" else makers

    def _behind(self, kind: str, size: int, make: Callable) -> Callable:
        def behind():
            assert self.gates[size if kind == "body" else "heads"].wait(WAIT)
            if size in self.broken:
                raise RuntimeError("the compiler has failed")
            return make()

        return behind

    def open(self, *names: int | str) -> None:
        for name in names:
            self.gates[name].set()


@pytest.fixture
def gates(monkeypatch) -> Iterator[Gates]:
    gates, compilations = Gates(), bundled.compilations

    def slow(jobs, sharding, reason):
        return gates.slow(compilations(jobs, sharding, reason), reason)

    monkeypatch.setattr(bundled, "compilations", slow)
    monkeypatch.setattr("xlaserve.engine.build.num_threads", lambda: 3)  # so that all wait at once
    yield gates
    gates.open(*gates.gates)


@contextmanager
def early(cache_dir, **settings) -> Iterator[LLM]:
    unexpected = LOG.compiled().get("unexpected", 0)
    with start("llama", cache_dir, **{"compile__serve_early": "true", **SIZES, **settings}) as llm:
        try:
            yield llm
        finally:
            assert LOG.compiled().get("unexpected", 0) == unexpected, "a request has waited for a compilation"


def steps(llm: LLM) -> dict[int, int]:
    return {size: count for size, count in runner_of(llm).bucket_use.steps.items() if count}


def until_left(llm: LLM, count: int) -> None:
    late = llm.service.late
    with late._changed:
        assert late._changed.wait_for(lambda: len(late._left) == count, WAIT)


def test_the_same_ids_before_between_and_after(cache_dir, gates):
    with early(cache_dir) as llm:
        assert runner_of(llm).buckets.tokens == (FIRST,)
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED
        assert steps(llm).keys() == {FIRST}
        gates.open(48)
        until_left(llm, 1)
        assert runner_of(llm).buckets.tokens == (FIRST, 48)
        assert ids(llm.generate([[7, *prompt] for prompt in prompts(LENGTHS)], greedy(1)))  # not in the prefix cache
        assert steps(llm).keys() == {FIRST, 48}
        gates.open(24)
        until_left(llm, 0)
        assert runner_of(llm).buckets.tokens == (FIRST, *LATER)
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED
    assert llm.service.late.status().failed == ()


def test_bodies_and_heads_wait_for_nothing_of_each_other(cache_dir, gates, monkeypatch):
    """With five rows there are heads for four and for five, which take what any body returns."""
    monkeypatch.setattr("xlaserve.engine.build.num_threads", lambda: 4)
    with early(cache_dir, scheduler__max_num_seqs=5, scheduler__max_num_batched_tokens=8) as llm:
        assert (runner_of(llm).buckets.tokens, runner_of(llm).buckets.outputs) == ((8,), (5,))
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED
        gates.open(4)
        until_left(llm, 2)
        assert (runner_of(llm).buckets.tokens, runner_of(llm).buckets.outputs) == ((4, 8), (5,))
        assert ids([llm.generate([prompt], greedy())[0] for prompt in prompts(LENGTHS)]) == EXPECTED
        assert steps(llm)[4] > 0
        gates.open("heads")
        until_left(llm, 0)
        assert (runner_of(llm).buckets.tokens, runner_of(llm).buckets.outputs) == ((4, 8), (4, 5))
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED


def test_bodies_that_join_in_the_middle_of_requests_change_no_token(cache_dir, gates):
    with early(cache_dir) as llm:
        opener = threading.Timer(0.05, gates.open, LATER)
        opener.start()
        for _ in range(8):
            assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED
        opener.join()
        assert llm.service.late.wait(WAIT)
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED


def test_prompts_are_read_and_scored_with_the_first_body(cache_dir, gates):
    with early(cache_dir) as llm:
        (completion,) = llm.generate([tiny_models.logprobs("llama")[0]], scoring(5))
        expect_transformers("llama", completion, 5)
        assert steps(llm).keys() == {FIRST}


def test_a_compilation_that_fails_is_told_and_the_others_serve(cache_dir, gates, caplog):
    gates.broken.add(24)
    with early(cache_dir) as llm:
        server = LiveServer()
        server.state.set_ready(served(llm.service))
        try:
            detail = server.get("/ready").json
            assert detail["status"] == "ready"
            assert detail["programs"] == {"buckets": [FIRST], "left": 2, "failed": 0}
            gates.open(*LATER)
            assert llm.service.late.wait(WAIT)
            assert server.get("/ready").json["programs"] == {"buckets": [FIRST, 48], "left": 0, "failed": 1}
            metrics = server.get("/metrics").body.decode()
        finally:
            server.state.stop()
            server.close()
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == EXPECTED
    assert "body 24 cannot be made" in caplog.text
    (line,) = (line for line in metrics.splitlines() if line.startswith("xlaserve:programs_failed{"))
    assert line.endswith(" 1.0")


def test_to_close_begins_no_more_of_them(cache_dir, gates, monkeypatch):
    monkeypatch.setattr("xlaserve.engine.build.num_threads", lambda: 1)
    with early(cache_dir) as llm:
        pass
    gates.open(*LATER)
    llm.service.late.stop()
    assert runner_of(llm).buckets.tokens == (FIRST, 48)  # it was under way


@pytest.mark.parametrize("asked", [3, 8])
def test_steps_have_no_more_tokens_than_asked_for(cache_dir, asked):
    """The smallest body takes four."""
    with start("llama", cache_dir, scheduler__max_num_batched_tokens=asked) as llm:
        assert llm.service._scheduler.max_num_batched_tokens == asked


def test_the_default_is_to_have_all_of_them_first(cache_dir, gates):
    with start("llama", cache_dir, **SIZES) as llm:
        assert runner_of(llm).buckets.tokens == (FIRST, *LATER)
        assert llm.service.late.status().left == ()
