"""How long prompts and answers may be, on both endpoints: the context, the KV pool and max_tokens."""

import re

import pytest

from tests.server.harness import Answer, LiveServer
from tests.server.test_answers import uncached
from tests.server.toy_service import MAX_MODEL_LEN

BOTH = pytest.mark.parametrize("ask", ["complete", "chat"])


def ask_with(server: LiveServer, ask: str, prompt_tokens: int, **fields) -> Answer:
    """A request whose prompt has just so many tokens."""
    if ask == "complete":
        return server.complete(prompt=[1] * prompt_tokens, **fields)
    empty = server.post("/tokenize", {"messages": [{"role": "user", "content": ""}]}).json["count"]
    return server.chat(messages=[{"role": "user", "content": "x" * (prompt_tokens - empty)}], **fields)


@pytest.mark.parametrize("max_tokens", [{}, {"max_tokens": 1}, {"max_tokens": None}], ids=str)
@pytest.mark.parametrize("stream", [True, False])
@BOTH
def test_a_prompt_leaves_room_for_one_token_at_least(live, ask, max_tokens, stream):
    free_blocks = live.service.free_blocks()
    for length in (MAX_MODEL_LEN, MAX_MODEL_LEN + 1):
        answer = ask_with(live, ask, length, stream=stream, **max_tokens)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        told = rf"maximum context length is {MAX_MODEL_LEN} tokens.*you requested \d+ tokens \({length} in the messages"
        assert re.search(told, answer.error["message"])
    usage = ask_with(live, ask, MAX_MODEL_LEN - 1, **max_tokens).json["usage"]
    assert uncached(usage) == {
        "prompt_tokens": MAX_MODEL_LEN - 1,
        "completion_tokens": 1,
        "total_tokens": MAX_MODEL_LEN,
    }
    assert live.service.free_blocks() == free_blocks


@BOTH
def test_report_80_no_token_at_all_cannot_be_asked_for(live, ask):
    for length in (MAX_MODEL_LEN - 1, MAX_MODEL_LEN, MAX_MODEL_LEN + 1):
        answer = ask_with(live, ask, length, max_tokens=0)
        assert (answer.status, answer.error["param"]) == (400, "max_tokens")


@BOTH
def test_a_prompt_larger_than_the_pool_is_refused_at_once_and_nobody_waits_behind_it(make_live, ask):
    server = make_live(b"x" * 500, num_blocks=(1 + 8,), block_size=16, max_model_len=1024)
    free_blocks = server.service.free_blocks()
    server.runner.released.clear()  # no step ends: whoever is answered was not queued
    for stream in (True, False):
        answer = ask_with(server, ask, 200, stream=stream)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert re.search("200 tokens.* holds only 128", answer.error["message"])
    server.runner.released.set()
    reply = server.complete(prompt=[1] * 5, max_tokens=3).json
    assert reply["usage"]["completion_tokens"] == 3
    for max_tokens in (500, None):
        reply = ask_with(server, ask, 100, max_tokens=max_tokens, ignore_eos=True).json
        expected = 16 if ask == "complete" and max_tokens is None else 28
        assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (expected, "length")
    assert server.service.free_blocks() == free_blocks


@pytest.mark.parametrize(
    ("ask", "fields", "tokens"),
    [
        ("complete", {}, 16),
        ("complete", {"max_tokens": None}, 16),
        ("complete", {"max_tokens": 10**9}, MAX_MODEL_LEN - 20),
        ("chat", {}, MAX_MODEL_LEN - 20),
        ("chat", {"max_tokens": None}, MAX_MODEL_LEN - 20),
        ("chat", {"max_tokens": 10**9}, MAX_MODEL_LEN - 20),
        ("chat", {"max_completion_tokens": 10**9}, MAX_MODEL_LEN - 20),
        ("chat", {"max_completion_tokens": 3}, 3),
        ("chat", {"max_completion_tokens": 3, "max_tokens": 9}, 3),
        ("chat", {"max_completion_tokens": None, "max_tokens": 9}, 9),
    ],
    ids=str,
)
def test_report_80_how_many_tokens_are_given(make_live, ask, fields, tokens):
    server = make_live(b"x" * 500)
    for _ in range(2):
        reply = ask_with(server, ask, 20, **fields).json
        assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (tokens, "length")
        events = ask_with(server, ask, 20, stream=True, stream_options={"include_usage": True}, **fields).events
        assert uncached(events[-1]["usage"]) == uncached(reply["usage"])


@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True, [3]], ids=repr)
def test_report_80_a_wrong_max_completion_tokens_is_refused_twice(live, value):
    free_blocks = live.service.free_blocks()
    for _ in range(2):
        answer = live.chat(max_completion_tokens=value, max_tokens=5)
        assert (answer.status, answer.error["param"]) == (400, "max_completion_tokens")
    assert live.chat().status == 200
    assert live.service.free_blocks() == free_blocks


def test_a_number_written_with_an_exponent_is_no_count(live):
    answer = live.post("/v1/completions", b'{"model": "toy", "prompt": "hi", "max_tokens": 1e9}')
    assert (answer.status, answer.error["param"]) == (400, "max_tokens")
