"""Several generations followed by one thread."""

import time
from types import SimpleNamespace
from typing import cast

import pytest

from tests.server.toy_service import make_toy_service
from xlaserve.engine import generations
from xlaserve.engine.generations import Generations, collect
from xlaserve.engine.news import News
from xlaserve.engine.output_processor import TextDelta
from xlaserve.engine.service import GenerationService
from xlaserve.errors import GenerationFailed
from xlaserve.sampling_params import SamplingParams


@pytest.fixture
def service():
    made, runner = make_toy_service(b"hello", step_seconds=0.001)
    yield made
    assert made.shutdown(timeout=0)
    assert runner.violations == []


@pytest.mark.parametrize("count", [1, 20])
def test_each_output_wakes_the_reader(service, monkeypatch, count):
    """Were one missed, the reader would wait for a minute."""
    monkeypatch.setattr(generations, "POLL_SECONDS", 60.0)
    started = time.monotonic()
    prompts = [[65 + number] for number in range(count)]  # more than run at a time
    completions = collect(Generations(service, prompts, SamplingParams(temperature=0), "a"))
    assert time.monotonic() - started < generations.POLL_SECONDS
    assert [completion.prompt_ids for completion in completions] == prompts
    assert {(completion.text, completion.finish_reason) for completion in completions} == {("hello", "stop")}


@pytest.mark.parametrize("count", [1, 3])
def test_the_check_is_made_while_nothing_is_generated(service, monkeypatch, count):
    monkeypatch.setattr(generations, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(type(service), "submit_all", lambda *_args, **_kwargs: [_Silent()] * count)
    looks = iter([None, None, RuntimeError("gone")])

    def check() -> None:
        if (error := next(looks)) is not None:
            raise error

    with pytest.raises(RuntimeError, match="gone"):
        next(iter(Generations(service, [[1]] * count, SamplingParams(), "a", check=check)))


def test_each_prompt_has_its_own_parameters_and_a_stop_string_ends_it_at_once(service):
    params = [SamplingParams(temperature=0, max_tokens=3), SamplingParams(temperature=0, stop="l")]
    outputs = collect(Generations(service, [[65], [66]], params, "a"))
    assert [(output.text, output.finish_reason) for output in outputs] == [("hel", "length"), ("he", "stop")]


@pytest.mark.parametrize(("stop", "sets"), [((), 1), (("no such",), 6)])
def test_who_collects_is_woken_by_ends_only_where_nothing_else_can_end_it(service, monkeypatch, stop, sets):
    woken = []
    monkeypatch.setattr(News, "set", lambda self: woken.append(None))
    monkeypatch.setattr(generations, "POLL_SECONDS", 0.01)
    begun = Generations(service, [[65]], SamplingParams(temperature=0, stop=stop), "a")
    begun.look_for_ends()
    assert "".join(delta.text for _, delta in begun) == "hello"
    assert len(woken) == sets


def test_what_came_before_a_failure_is_given_first():
    """In one output, as a late reader gets it."""
    failed = SimpleNamespace(forks=(), next=lambda timeout: TextDelta("hel", (1, 2, 3), None, "error", error="broken"))
    only = SimpleNamespace(submit_all=lambda *_args: [failed])
    found = iter(Generations(cast(GenerationService, only), [[1]], SamplingParams(), "a"))
    assert next(found) == (0, TextDelta("hel", (1, 2, 3), error="broken"))
    with pytest.raises(GenerationFailed, match="broken"):
        next(found)


class _Silent:
    forks = ()

    def next(self, timeout):
        return None
