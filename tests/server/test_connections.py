"""Clients that leave, servers that are full, starting or stopping."""

import time
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.harness import LiveServer, wait_until

PROMPT = {"model": "toy", "prompt": "hi", "max_tokens": 80}


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_aborts_its_request(make_live, stream):
    server = make_live(b"x" * 500, step_seconds=0.1)
    free = server.service.free_blocks()
    with server.open("/v1/completions", PROMPT | {"stream": stream}):
        assert wait_until(lambda: server.service.free_blocks() < free)
    assert wait_until(lambda: server.service.free_blocks() == free)


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_aborts_a_queued_request(make_live, stream):
    server = make_live(b"x" * 500, step_seconds=0.1)
    with server.open("/v1/completions", PROMPT | {"prompt": ["a"] * 8}):  # takes every row
        assert wait_until(lambda: server.service.stats()["running"] == 8)
        with server.open("/v1/completions", PROMPT | {"stream": stream}):
            assert wait_until(lambda: server.service.stats()["waiting"] == 1)
        assert wait_until(lambda: server.service.stats()["waiting"] == 0)
        assert server.service.stats()["running"] == 8


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_is_noticed_while_nothing_is_generated(make_live, stream):
    """As during a long prompt's first step."""
    server = make_live(b"x" * 500)
    server.runner.released.clear()
    free = server.service.free_blocks()
    with server.open("/v1/completions", PROMPT | {"stream": stream}):
        assert wait_until(lambda: server.service.free_blocks() < free)
    assert wait_until(lambda: server.state.places.wait_until_idle(0), seconds=1.5)


def test_a_full_server_refuses_at_once_and_still_answers_health(make_live):
    server = make_live(b"x" * 500, step_seconds=0.1, max_requests=2)
    with server.open("/v1/completions", PROMPT), server.open("/v1/completions", PROMPT | {"stream": True}):
        assert wait_until(lambda: server.complete().status == 429)
        answer = server.complete()
        assert answer.headers["Retry-After"] == "1"
        assert answer.error["code"] == "rate_limit_exceeded"
        assert server.get("/health").status == 200
        assert server.get("/v1/models").status == 200
    assert wait_until(lambda: server.complete(max_tokens=1).status == 200)


def test_report_87_loading():
    server = LiveServer()
    try:
        for path in ("/health", "/ready", "/v1/models", "/metrics"):
            answer = server.get(path)
            assert answer.status == 503
            assert answer.headers["Retry-After"]
            assert answer.json["error"]["code"] == "service_unavailable"
        assert server.complete().error["type"] == "server_error"
        assert server.get("/version").status == 200
        server.state.phase("weights")
        server.state.progress("tensors", 3, 10)
        detail = server.get("/ready").json
        assert (detail["status"], detail["step"]) == ("loading", "weights")
        assert detail["progress"] == {"name": "tensors", "done": 3, "total": 10}
    finally:
        server.close()


def test_ready(live):
    assert live.get("/health").status == 200
    assert live.get("/ready").json["status"] == "ready"


def test_draining_finishes_what_runs_and_refuses_what_comes(make_live):
    server = make_live(b"hello", step_seconds=0.1)
    with server.open("/v1/completions", PROMPT | {"stream": True}) as running:
        assert wait_until(lambda: not server.state.places.wait_until_idle(0))
        server.state.drain()
        assert server.complete().status == 503
        assert server.get("/health").status == 503
        assert running.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert server.state.places.wait_until_idle(2)


@pytest.mark.parametrize("stream", [True, False])
def test_stopping_tells_those_that_still_run(make_live, stream):
    server = make_live(b"x" * 500, step_seconds=0.1)
    with server.open("/v1/completions", PROMPT | {"stream": stream}) as running:
        assert wait_until(lambda: not server.state.places.wait_until_idle(0))
        server.state.stop()
        response = running.getresponse()
        body = response.read()
        assert b'"error"' in body
        assert response.status == (200 if stream else 503)


@pytest.mark.parametrize("stream", [True, False])
def test_report_87_a_failed_engine_tells_its_clients_and_is_not_healthy(make_live, stream):
    server = make_live(b"x" * 500, fail_at={("result", number) for number in range(2, 20)})
    answer = server.complete(stream=stream)
    if stream:
        assert answer.events[-1]["error"]["type"] == "server_error"
    else:
        assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert wait_until(lambda: server.get("/health").status == 503)
    assert server.complete().status == 503


def test_report_87_an_engine_that_hangs_is_not_healthy_and_nobody_waits_for_it(make_live, monkeypatch):
    monkeypatch.setattr("xlaserve.server.state.HUNG_SECONDS", 0.3)
    server = make_live()
    server.runner.released.clear()
    answer = server.complete()
    assert answer.status == 503
    assert "no progress" in answer.error["message"]
    assert server.get("/health").status == 503
    server.runner.released.set()
    assert wait_until(lambda: server.get("/health").status == 200)


def test_report_87_health_answers_within_a_second_under_64_streams(make_live):
    server = make_live(b"x" * 500, step_seconds=0.05, max_requests=65, max_num_seqs=64, num_blocks=[2000])
    with ExitStack() as stack:
        streams = [stack.enter_context(server.open("/v1/completions", PROMPT | {"stream": True})) for _ in range(64)]
        assert wait_until(lambda: server.service.stats()["running"] == 64)
        for path in ("/health", "/ready", "/v1/models", "/metrics"):
            started = time.monotonic()
            assert server.get(path).status == 200
            assert time.monotonic() - started < 5  # and within one, where nothing else runs
        server.state.stop()
        assert all(b'"error"' in stream.getresponse().read() for stream in streams)


def test_a_full_queue_is_a_429(make_live):
    server = make_live(max_waiting=0)
    server.runner.released.clear()
    with server.open("/v1/completions", {"model": "toy", "prompt": ["a"] * 5}):
        assert wait_until(lambda: server.service.stats()["running"] == 5)
        answer = server.complete(prompt=["a"] * 4)
        assert (answer.status, answer.error["code"]) == (429, "queue_full")
        assert answer.headers["Retry-After"] == "1"
        server.runner.released.set()
    assert wait_until(lambda: server.complete().status == 200)


def test_prompts_that_wait_are_counted_in_tokens(make_live):
    server = make_live(max_waiting_tokens=20, max_num_seqs=1)
    server.runner.released.clear()
    with server.open("/v1/completions", {"model": "toy", "prompt": "hi"}):
        assert wait_until(lambda: server.service.stats()["running"] == 1)
        with server.open("/v1/completions", {"model": "toy", "prompt": [[1] * 30]}):  # over the limit, but nobody waits
            assert wait_until(lambda: server.service._loop._inbox_tokens == 30)
            answer = server.complete(prompt=[[1]])
            assert (answer.status, answer.error["code"]) == (429, "queue_full")
            assert "30 tokens are waiting" in answer.error["message"]
        server.runner.released.set()
    assert wait_until(lambda: server.complete().status == 200)


def test_prompts_that_come_together_do_not_keep_each_other_out(make_live):
    server = make_live(max_waiting_tokens=10, max_waiting=2)
    for _ in range(5):
        assert server.complete(prompt=["six..."] * 4).status == 200
    assert wait_until(lambda: server.service.stats()["running"] == 0)


def test_more_prompts_than_the_server_ever_takes_are_refused(make_live):
    """Not with a 429: to try again would not help."""
    server = make_live(max_waiting=2)
    for fields in ({"prompt": ["a"] * 11}, {"prompt": ["a"] * 100, "n": 128}, {"prompt": ["a", "b"], "n": 6}):
        answer = server.complete(**fields)
        assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert server.complete(prompt=["a"] * 10).status == 200


def test_metrics_count_what_was_served(make_live):
    server = make_live()
    for _ in range(3):
        server.complete()
    server.complete(max_tokens=0)
    answer = server.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["xlaserve:request_success_total", "stop"] == 3
    assert samples["xlaserve:time_to_first_token_seconds_count", None] == 3


def test_retry_after_tells_how_long_as_many_requests_take_as_wait(make_live):
    """A request takes a fifth of a second or little more: nine that wait take at least 1.8."""
    server = make_live(b"x" * 500, step_seconds=0.02, max_num_seqs=1, max_waiting=9, max_requests=20)
    body = {"model": "toy", "prompt": ["hi"] * 10, "max_tokens": 10, "ignore_eos": True}
    with server.open("/v1/completions", body):
        assert wait_until(lambda: server.service.stats()["waiting"] == 6)
        with server.open("/v1/completions", body | {"prompt": ["hi"] * 3}):
            assert wait_until(lambda: server.service.stats()["waiting"] >= 8)
            answer = server.post("/v1/completions", body)
    assert (answer.status, answer.error["type"], answer.error["code"]) == (429, "rate_limit_error", "queue_full")
    assert 2 <= int(answer.headers["Retry-After"]) <= 4
