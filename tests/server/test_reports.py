"""Field reports that need a whole server to show: what a client sent, and what it got."""

import openai
import pytest

from tests import toys
from tests.server.harness import JSON, wait_until
from tests.server.test_answers import joined
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.unsupported import CHAT

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
BOTH = pytest.mark.parametrize("ask", ["complete", "chat"])


def text_of(choice: dict) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


@BOTH
def test_report_1_bytes_that_are_no_text_end_no_request(make_live, ask):
    server = make_live(b'{"a": "\xc3 \xe2\x80" , \xff}')
    expected = '{"a": "\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}" , \N{REPLACEMENT CHARACTER}}'
    (choice,) = getattr(server, ask)(max_tokens=40).json["choices"]
    assert (text_of(choice), choice["finish_reason"]) == (expected, "stop")
    assert joined(getattr(server, ask)(max_tokens=40, stream=True).events) == expected


@BOTH
def test_report_4_streams_of_sentencepiece_keep_every_space(make_live, ask):
    tokenizer = toys.sentencepiece_tokenizer(template=toys.CHAT_TEMPLATE)
    script = tokenizer.encode("It is A. B  C\n D", add_special_tokens=False)
    server = make_live(script, tokenizer=tokenizer)
    (choice,) = getattr(server, ask)(max_tokens=40).json["choices"]
    assert text_of(choice).lstrip(" ") == "It is A. B  C\n D"
    assert joined(getattr(server, ask)(max_tokens=40, stream=True).events) == text_of(choice)


@BOTH
def test_report_13_stream_options_are_a_streams(live, ask):
    for options in ({"include_usage": True}, {"include_usage": False}, {}):
        for stream in (False, None):
            answer = getattr(live, ask)(stream=stream, stream_options=options)
            assert (answer.status, answer.error["param"]) == (400, "stream_options")
    assert getattr(live, ask)(stream=False, stream_options=None).status == 200


def test_report_17_no_logprobs_are_null(live):
    for fields in ({}, {"logprobs": None}):
        assert live.complete(**fields).json["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    "fields", [{"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": False}, {"top_logprobs": 21, "logprobs": True}]
)
def test_report_18_alternatives_need_logprobs_and_have_a_limit(live, fields):
    answer = live.chat(**fields)
    assert (answer.status, answer.error["param"]) == (400, "top_logprobs")


@BOTH
def test_report_27_seeded_choices_differ_and_come_again(make_live, ask):
    """A model of arithmetic: it says anything."""
    send = getattr(make_live(next_token=None), ask)
    asked = {"n": 4, "temperature": 1, "seed": 1, "max_tokens": 8, "ignore_eos": True}
    choices = send(**asked).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    texts = [text_of(choice) for choice in choices]
    assert len({*texts}) == 4
    events = send(**asked, stream=True).events
    assert [joined(events, index) for index in range(4)] == texts
    assert len({text_of(choice) for choice in send(**asked | {"temperature": 0}).json["choices"]}) == 1


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}], ids=str)
def test_report_74_the_template_gets_the_result_of_a_call(live, content):
    """Also where the message that called has no content."""
    messages = [USER, {"role": "assistant", "tool_calls": [CALL], **content}]
    messages += [{"role": "tool", "tool_call_id": "call_1", "content": "It rains"}]
    ids = live.chat(messages=messages, return_token_ids=True).json["prompt_token_ids"]
    shown = live.post("/detokenize", {"tokens": ids}).json["prompt"]
    assert shown == "<s>[user]hi</s>[assistant]</s>[tool]It rains</s>[assistant]"


def test_report_74_null_in_every_optional_field_is_fine_but_a_user_says_something(live):
    optional = {*ChatRequest.model_fields, *CHAT} - {"model", "messages"}
    assert live.chat(**dict.fromkeys(optional)).json["choices"][0]["message"]["content"] == "hello"
    answer = live.chat(messages=[{"role": "user", "content": None}])
    assert (answer.status, answer.error["param"]) == (400, "messages")


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_report_75_parts_of_text_reach_a_template_as_one(live, role):
    """It adds its own strings to the content."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ids = live.chat(messages=[USER, {"role": role, "content": parts}], return_token_ids=True).json["prompt_token_ids"]
    assert f"[{role}]a\nb</s>" in live.post("/detokenize", {"tokens": ids}).json["prompt"]


@pytest.mark.parametrize(
    ("part", "told"), [({"type": "image_url", "image_url": {"url": "data:,"}}, "image"), ({"text": "a"}, '"type"')]
)
def test_report_75_other_parts_are_refused_by_their_kind(live, part, told):
    answer = live.chat(messages=[{"role": "user", "content": [part]}])
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert told in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/completions", {"model": "toy", "prompt": "hi", "n": "2"}, (400, "n", None)),
        ("POST", "/v1/completions", {"model": "toy"}, (400, "prompt", None)),
        ("POST", "/v1/chat/completions", {"messages": [USER]}, (400, "model", None)),
        ("POST", "/v1/chat/completions", {"model": "x", "messages": [USER]}, (404, "model", "model_not_found")),
        ("POST", "/v1/nothing", {}, (404, None, None)),
        ("GET", "/v1/nothing", None, (404, None, None)),
        ("DELETE", "/v1/completions", None, (405, None, None)),
        ("POST", "/v1/completions", b" " * 200_000, (413, None, None)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_report_76_every_error_has_the_same_shape(live, method, path, body, expected):
    answer = live.request(method, path, body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == expected
    assert answer.error["type"] == "invalid_request_error"


def test_report_76_so_has_one_of_a_client_without_a_key(make_live):
    server = make_live(api_keys={"alice": "sk-alice"})
    for headers in (JSON, JSON | {"Authorization": "Bearer wrong"}):
        answer = server.post("/v1/completions", {"model": "toy", "prompt": "hi"}, headers)
        error = answer.error
        assert (answer.status, error["type"], error["param"], error["code"]) == (
            401,
            "invalid_request_error",
            None,
            "invalid_api_key",
        )
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.completions.create(model="toy", prompt="hi")
        assert (caught.value.code, caught.value.body) == ("invalid_api_key", error)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_report_76_so_has_one_of_a_server_that_has_too_much_to_do(make_live, ask, stream):
    server = make_live(max_num_seqs=1, max_waiting=0)
    server.runner.released.clear()  # no step ends
    body = {"model": "toy", "prompt": "hi"}
    with server.open("/v1/completions", body) as connection:
        assert wait_until(lambda: server.service.stats()["running"] == 1)
        answer = getattr(server, ask)(stream=stream)
        error = answer.error
        assert (answer.status, error["type"], error["param"]) == (429, "rate_limit_error", None)
        assert error["code"] == "queue_full"
        assert int(answer.headers["Retry-After"]) >= 1
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="toy", prompt="hi")
            assert caught.value.body == error
        server.runner.released.set()
        assert connection.getresponse().status == 200
