"""Several generations followed by one thread."""

import time

import pytest

from tests.server.toy_service import make_toy_service
from xlaserve.sampling_params import SamplingParams
from xlaserve.server import collect
from xlaserve.server.errors import ClientGone


@pytest.fixture
def service():
    made, runner = make_toy_service(b"hello", step_seconds=0.001)
    yield made
    assert made.shutdown(timeout=0)
    assert runner.violations == []


@pytest.mark.parametrize("count", [1, 20])
def test_each_output_wakes_the_reader(service, monkeypatch, count):
    """Were one missed, the reader would wait for a minute."""
    monkeypatch.setattr(collect, "POLL_SECONDS", 60.0)
    started = time.monotonic()
    prompts = [[65 + number] for number in range(count)]  # more than run at a time
    completions = collect.collect(collect.Generations(service, prompts, SamplingParams(temperature=0), "a"))
    assert time.monotonic() - started < 10
    assert [completion.prompt_ids for completion in completions] == prompts
    assert {(completion.text, completion.finish_reason) for completion in completions} == {("hello", "stop")}


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_has_gone_is_noticed_while_nothing_is_generated(service, monkeypatch, count):
    monkeypatch.setattr(collect, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(type(service), "submit", lambda *_args, **_kwargs: _Silent())
    generations = collect.Generations(service, [[1]] * count, SamplingParams(), "a", client_gone=lambda: True)
    with pytest.raises(ClientGone):
        next(iter(generations))


class _Silent:
    def next(self, timeout):
        return None
