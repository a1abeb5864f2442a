"""What a request may say of its prompt, of its name and of the numbers that come with the answer."""

import pytest

from tests import toys
from tests.server.test_answers import usage
from tests.server.test_text import ASK, BOTH
from xlaserve.server import responses

PROMPT = "0123456789"


def test_the_end_of_a_prompt_may_be_kept_alone(live):
    for keep, expected in ((3, "789"), (10, PROMPT), (10**6, PROMPT), (None, PROMPT)):
        reply = live.complete(prompt=[PROMPT, "ab"], truncate_prompt_tokens=keep, return_token_ids=True).json
        first, second = (bytes(choice["prompt_token_ids"]).decode() for choice in reply["choices"])
        assert (first, second) == (expected, "ab" if keep != 1 else "b")
        assert reply["usage"]["prompt_tokens"] == len(expected) + 2
    whole = live.chat(return_token_ids=True).json["prompt_token_ids"]
    assert live.chat(return_token_ids=True, truncate_prompt_tokens=4).json["prompt_token_ids"] == whole[-4:]


@pytest.mark.parametrize(("max_tokens", "room"), [(5, 5), (None, 16)])
def test_a_prompt_may_be_cut_to_what_the_context_has_room_for(make_live, max_tokens, room):
    server = make_live(b"x" * 500)
    limit = min(server.service.info.max_model_len, server.service.info.max_request_tokens)
    reply = server.complete(prompt=[1] * 2 * limit, truncate_prompt_tokens=-1, max_tokens=max_tokens).json
    assert reply["usage"]["prompt_tokens"] == limit - room
    assert reply["usage"]["completion_tokens"] == room
    assert server.complete(prompt=[1] * limit, truncate_prompt_tokens=limit).status == 400


@BOTH
@pytest.mark.parametrize("value", [0, -2, "3", 1.0, True], ids=repr)
def test_what_is_no_number_of_prompt_tokens_is_refused(live, ask, value):
    answer = getattr(live, ask)(**ASK[ask], truncate_prompt_tokens=value)
    assert (answer.status, answer.error["param"]) == (400, "truncate_prompt_tokens")


def test_special_tokens_are_added_where_they_are_wanted(make_live):
    tokenizer = toys.byte_level_tokenizer(add_bos=True, template="{{ messages[0].content }}")
    server = make_live(tokenizer=tokenizer)

    def first_id(ask, **fields):
        reply = getattr(server, ask)(**ASK[ask], **fields, return_token_ids=True).json
        return (reply if ask == "chat" else reply["choices"][0])["prompt_token_ids"][0]

    assert [first_id("complete", add_special_tokens=each) == tokenizer.bos_id for each in (None, True, False)] == [
        True,
        True,
        False,
    ]
    assert [first_id("chat", add_special_tokens=each) == tokenizer.bos_id for each in (None, True, False)] == [
        False,
        True,
        False,
    ]


@BOTH
def test_the_client_may_name_its_request(live, ask):
    send, prefix = getattr(live, ask), {"complete": "cmpl", "chat": "chatcmpl"}[ask]
    answer = send(**ASK[ask], request_id="my/request-7")
    assert answer.json["id"] == f"{prefix}-my/request-7"
    assert answer.headers["X-Request-Id"] == "my/request-7"
    events = send(**ASK[ask], request_id="again", stream=True).events
    assert {event["id"] for event in events} == {f"{prefix}-again"}
    for value in ("", "a b", "é", "x" * 129, 5, "a\n"):
        assert send(**ASK[ask], request_id=value).error["param"] == "request_id"


def test_the_header_of_a_proxy_comes_back(live):
    body = {"model": "toy", "prompt": "hi"}
    json_headers = {"Content-Type": "application/json"}
    answer = live.post("/v1/completions", body, json_headers | {"X-Request-Id": "proxy-1"})
    assert answer.headers["X-Request-Id"] == "proxy-1"
    assert answer.json["id"] != "cmpl-proxy-1"
    answer = live.post("/v1/completions", body, json_headers | {"X-Request-Id": "x" * 200})
    assert answer.headers["X-Request-Id"] == answer.json["id"]


def test_tokens_of_logprobs_may_be_shown_as_ids(live):
    shown = [f"token_id:{byte}" for byte in b"hello"]
    asked = {"logprobs": 2, "return_tokens_as_token_ids": True}
    logprobs = live.complete(**asked).json["choices"][0]["logprobs"]
    assert logprobs["tokens"][:5] == shown
    assert all(key.startswith("token_id:") for best in logprobs["top_logprobs"] for key in best)
    assert logprobs["text_offset"] == live.complete(logprobs=2).json["choices"][0]["logprobs"]["text_offset"]
    chunks = live.complete(**asked, stream=True).events
    assert [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]][:5] == shown
    asked = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    content = live.chat(**asked).json["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[:5]] == shown
    assert content[0]["bytes"] == [ord("h")]
    assert content[0]["top_logprobs"][0]["token"].startswith("token_id:")


@BOTH
def test_tokens_that_nothing_shows_cannot_be_shown_as_ids(live, ask):
    answer = getattr(live, ask)(**ASK[ask], return_tokens_as_token_ids=True)
    assert (answer.status, answer.error["param"]) == (400, "return_tokens_as_token_ids")


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_told(make_live, stream):
    live = make_live(block_size=4)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    def told(**fields) -> dict:
        answer = live.complete(prompt=[PROMPT, "ab"], **options, **fields)
        return answer.events[-1]["usage"] if stream else answer.json["usage"]

    assert told() == usage(12, 12)
    assert told() == usage(12, 12, cached_tokens=9 + 1)
    assert told(n=3)["prompt_tokens_details"] == {"cached_tokens": 9 + 1}
    assert told(cache_salt="x")["prompt_tokens_details"] == {"cached_tokens": 0}


@BOTH
def test_usage_so_far_in_every_chunk(live, ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = getattr(live, ask)(**ASK[ask], stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 6  # before it as many as were there when the event was written, on a busy machine all
    assert events[-1]["usage"] == last["usage"]
    for options in ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": False}):
        answer = getattr(live, ask)(**ASK[ask], stream=True, stream_options=options)
        assert (answer.status, answer.error["param"]) == (400, "stream_options")


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_timings_of_each_choice(make_live, ask, stream):
    live = make_live(step_seconds=0.01)
    answer = getattr(live, ask)(**ASK[ask], n=2, return_timings=True, stream=stream)
    chunks = answer.events if stream else [answer.json]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    timed = [choice for choice in choices if "timings" in choice]
    assert sorted(choice["index"] for choice in timed) == [0, 1]
    assert all(choice["finish_reason"] == "stop" for choice in timed)
    for choice in timed:
        timings = choice["timings"]
        responses.Timings.model_validate(timings)
        assert 0 <= timings["queue"] < timings["ttft"] < timings["total"]
        assert timings["tokens_per_second"] == pytest.approx(5 / (timings["total"] - timings["ttft"]))
        assert timings["total"] >= 0.05
    assert not any("timings" in choice for choice in getattr(live, ask)(**ASK[ask]).json["choices"])


def test_timings_of_a_single_token_tell_no_speed(live):
    (choice,) = live.complete(return_timings=True, max_tokens=1).json["choices"]
    assert choice["timings"]["tokens_per_second"] is None
