"""What comes back, whole and streamed, for completions and chat."""

import pytest

from xlaserve.server import responses

HELLO = list(b"hello")


def joined(events: list[dict], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def uncached(usage: dict) -> dict:
    """Without what a request before may have changed."""
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def test_a_completion(live):
    answer = live.complete()
    assert answer.status == 200
    reply = answer.json
    responses.CompletionReply.model_validate(reply)
    assert reply["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert reply["usage"] == usage(2, 6)  # EOS counts
    assert answer.headers["X-Request-Id"] == reply["id"]


def test_max_tokens_ends_with_length(live):
    choice = live.complete(max_tokens=2).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("he", "length")


def test_stop_strings_and_stop_ids(live):
    choice = live.complete(stop="lo").json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hel", "stop", "lo")
    choice = live.complete(stop_token_ids=[ord("l")]).json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("he", "stop", ord("l"))


def test_ignore_eos(live):
    choice = live.complete(ignore_eos=True, max_tokens=10).json["choices"][0]
    assert choice["finish_reason"] == "length"


def test_a_streamed_completion_equals_the_whole_one(live):
    events = live.complete(stream=True).events
    assert joined(events) == "hello"
    for event in events:
        responses.CompletionReply.model_validate(event)
        assert "usage" not in event
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1


@pytest.mark.parametrize("prompt", [["hi", "you"], [[104, 105], [121, 111, 117]]], ids=["text", "ids"])
def test_several_prompts_are_several_choices(live, prompt):
    whole = live.complete(prompt=prompt).json
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, "hello"), (1, "hello")]
    assert whole["usage"] == usage(5, 12)
    events = live.complete(prompt=prompt, stream=True, stream_options={"include_usage": True}).events
    assert [joined(events, index) for index in (0, 1)] == ["hello", "hello"]
    assert uncached(events[-1]["usage"]) == uncached(whole["usage"])


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}], ids=str)
@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_report_13_no_usage_unless_asked_for(live, ask, options):
    events = getattr(live, ask)(stream=True, stream_options=options).events
    assert all(event["choices"] and "usage" not in event for event in events)


@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_report_13_usage_in_a_stream(live, ask):
    *events, last = getattr(live, ask)(stream=True, stream_options={"include_usage": True}).events
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    assert uncached(last["usage"]) == uncached(getattr(live, ask)().json["usage"])


def test_a_chat_answer(live):
    reply = live.chat().json
    responses.ChatReply.model_validate(reply)
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    assert reply["usage"]["completion_tokens"] == 6


def test_report_11_chat_chunks(live):
    events = live.chat(stream=True).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(set(delta) == {"content"} and delta["content"] for delta in deltas[1:-1])
    assert joined(events) == "hello"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1


def test_chat_without_max_tokens_runs_to_the_end_of_the_context(make_live):
    server = make_live(b"x" * 500)
    usage = server.chat().json["usage"]
    limit = min(server.service.info.max_model_len, server.service.info.max_request_tokens)
    assert usage["total_tokens"] == limit
    assert server.chat(max_completion_tokens=3, max_tokens=9).json["usage"]["completion_tokens"] == 3
    assert server.complete().json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("top", [0, 1, 5])
def test_report_17_completion_logprobs(live, top):
    logprobs = live.complete(logprobs=top).json["choices"][0]["logprobs"]
    assert logprobs["tokens"][:5] == list("hello")
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert all(isinstance(value, float) and value <= 0 for value in logprobs["token_logprobs"])
    if top == 0:
        assert logprobs["top_logprobs"] is None
    else:
        for token, best in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
            assert token in best
            assert top <= len(best) <= top + 1


def test_streamed_completion_logprobs_equal_the_whole_ones(live):
    whole = live.complete(logprobs=2).json["choices"][0]["logprobs"]
    streamed = {name: [] for name in whole}
    for event in live.complete(logprobs=2, stream=True).events:
        for name, values in event["choices"][0]["logprobs"].items():
            streamed[name] += values or []
    assert streamed == whole


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}, {"top_logprobs": 2}], ids=str)
def test_report_18_chat_logprobs(live, fields):
    whole = live.chat(logprobs=True, **fields).json["choices"][0]["logprobs"]
    assert [entry["token"] for entry in whole["content"][:5]] == list("hello")
    assert [entry["bytes"] for entry in whole["content"][:5]] == [[byte] for byte in b"hello"]
    assert all(len(entry["top_logprobs"]) == fields.get("top_logprobs", 0) for entry in whole["content"])
    streamed = [
        entry
        for event in live.chat(logprobs=True, stream=True, **fields).events
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole["content"]


def test_token_ids_of_completions(live):
    choice = live.complete(return_token_ids=True).json["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"][:5]) == ([104, 105], HELLO)
    choices = [event["choices"][0] for event in live.complete(return_token_ids=True, stream=True).events]
    assert choices[0]["prompt_token_ids"] == [104, 105]
    assert not any("prompt_token_ids" in later for later in choices[1:])
    assert [token_id for one in choices for token_id in one["token_ids"]] == choice["token_ids"]


def test_token_ids_of_chat(live):
    whole = live.chat(return_token_ids=True).json
    first, *others = live.chat(return_token_ids=True, stream=True).events
    messages = [{"role": "user", "content": "hi"}]
    assert whole["prompt_token_ids"] == live.post("/tokenize", {"messages": messages}).json["tokens"]
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in others)
    streamed = [token_id for event in [first, *others] for token_id in event["choices"][0]["token_ids"]]
    assert streamed == whole["choices"][0]["token_ids"]
    assert streamed[:5] == HELLO


def test_models(live):
    (card,) = live.get("/v1/models").json["data"]
    assert (card["id"], card["object"]) == ("toy", "model")
    assert live.get("/v1/models/toy").json == card
    assert live.get("/v1/models/other").error["code"] == "model_not_found"


def test_tokenize_and_detokenize(live):
    answer = live.post("/tokenize", {"prompt": "hi", "return_token_strs": True}).json
    assert answer == {
        "count": 2,
        "max_model_len": answer["max_model_len"],
        "tokens": [104, 105],
        "token_strs": ["h", "i"],
    }
    assert live.post("/detokenize", {"model": "toy", "tokens": [104, 105]}).json == {"prompt": "hi"}
    assert live.post("/tokenize", {"model": "other", "prompt": "hi"}).status == 404
    assert live.post("/tokenize", {}).status == 400
    assert live.post("/detokenize", {"tokens": [10**9]}).error["param"] == "tokens"


def test_messages_reach_the_template_with_and_without_generation_prompt(live):
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    count = live.post("/tokenize", {"messages": messages}).json["count"]
    without = live.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json
    assert without["count"] < count
    assert "a\nb" in live.post("/detokenize", {"tokens": without["tokens"]}).json["prompt"]
