"""`timeout`: a request that waits past it is a 504; one that runs ends with what it has."""

import time

import pytest

from tests.server.harness import JSON, wait_until

LONG = {"max_tokens": 80, "ignore_eos": True}
BOTH = pytest.mark.parametrize("ask", ["complete", "chat"])


@pytest.fixture
def slow(make_live):
    """20 ms a token, one request at a time. Afterwards nothing is held."""
    server = make_live(b"x" * 500, step_seconds=0.02, max_num_seqs=1)
    free = server.service.free_blocks()
    yield server
    assert wait_until(lambda: server.service.free_blocks() == free)
    assert server.service.stats()["waiting"] == server.service.stats()["running"] == 0


@BOTH
def test_a_running_request_ends_with_its_partial_text(slow, ask):
    answer = getattr(slow, ask)(timeout=0.3, return_token_ids=True, **LONG).json
    (choice,) = answer["choices"]
    text = choice["text"] if ask == "complete" else choice["message"]["content"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
    assert 0 < len(text) < 40
    assert set(text) == {"x"}
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"]) == len(text)


@BOTH
def test_a_stream_ends_like_the_whole_answer(slow, ask):
    events = getattr(slow, ask)(timeout=0.3, stream=True, **LONG).events
    choices = [event["choices"][0] for event in events]
    texts = [choice["text"] if ask == "complete" else choice["delta"].get("content", "") for choice in choices]
    assert 0 < len("".join(texts)) < 40
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("length", "timeout")
    assert all(choice["finish_reason"] is None for choice in choices[:-1])


@pytest.mark.parametrize("fields", [{"prompt": ["a", "b", "c"]}, {"n": 3}], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_of_a_request_ends_in_time(make_live, stream, fields):
    server = make_live(b"x" * 500, step_seconds=0.02)
    answer = server.complete(timeout=0.3, stream=stream, **LONG, **fields)
    choices = [choice for event in (answer.events if stream else [answer.json]) for choice in event["choices"]]
    ends = [choice["index"] for choice in choices if choice["stop_reason"] == "timeout"]
    assert sorted(ends) == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
@BOTH
def test_a_request_that_only_waited_is_a_504(slow, ask, stream):
    with slow.open("/v1/completions", {"model": "toy", "prompt": "hi", **LONG}):
        assert wait_until(lambda: slow.service.stats()["running"] == 1)
        start = time.monotonic()
        answer = getattr(slow, ask)(timeout=0.2, stream=stream, **LONG)
        assert time.monotonic() - start >= 0.2
    if stream:
        (event,) = answer.events
        error = event["error"]
    else:
        assert answer.status == 504
        error = answer.error
    assert (error["type"], error["code"], error["param"]) == ("server_error", "timeout", None)


def test_a_request_that_is_fast_enough_does_not_notice(live):
    assert live.complete(timeout=30).json["choices"][0]["text"] == "hello"


def test_time_outs_are_counted_by_what_became_of_them(slow):
    with slow.open("/v1/completions", {"model": "toy", "prompt": "hi", "timeout": 0.4, **LONG}) as connection:
        assert wait_until(lambda: slow.service.stats()["running"] == 1)
        assert slow.complete(timeout=0.1, **LONG).status == 504
        assert connection.getresponse().read()
    shown = slow.request("GET", "/metrics", headers=JSON).body.decode()
    for reason in ("timeout", "length"):
        assert f'request_success_total{{finished_reason="{reason}",model_name="toy"}} 1.0' in shown
