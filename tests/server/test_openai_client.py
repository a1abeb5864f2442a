"""The official client works, and every object parses strictly as its own types."""

import json

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completions(client):
    completion = client.completions.create(model="toy", prompt="hi", logprobs=2)
    assert completion.choices[0].text == "hello"
    assert completion.usage.completion_tokens == 6
    chunks = client.completions.create(model="toy", prompt=["a", "b"], stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == 1) == "hello"


def test_chat(client):
    completion = client.chat.completions.create(
        model="toy", messages=MESSAGES, logprobs=True, top_logprobs=2, user="me", extra_body={"top_k": 3}
    )
    assert completion.choices[0].message.content == "hello"
    assert len(completion.choices[0].logprobs.content[0].top_logprobs) == 2
    again = [*MESSAGES, completion.choices[0].message, {"role": "user", "content": "more"}]
    assert client.chat.completions.create(model="toy", messages=again).choices[0].message.content == "hello"


def test_chat_stream(client):
    chunks = list(
        client.chat.completions.create(
            model="toy", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hello"
    assert chunks[-1].usage.completion_tokens == 6


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model="toy", messages=MESSAGES) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "hello"


def test_models_and_errors(client):
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="suffix") as refused:
        client.completions.create(model="toy", prompt="hi", suffix="x")
    assert refused.value.param == "suffix"


def test_an_error_in_a_stream_reaches_the_client(make_live):
    server = make_live(b"x" * 500, step_seconds=0.05)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="toy", prompt="hi", stream=True, max_tokens=80)
        next(stream)
        server.state.stop()
        with pytest.raises(openai.APIError, match="shut down"):
            for _ in stream:
                pass


@pytest.mark.parametrize("fields", [{}, {"logprobs": 3, "return_token_ids": True}], ids=["plain", "all"])
def test_completions_parse_strictly(live, fields):
    strictly(Completion, live.complete(**fields).body)
    for event in live.complete(stream=True, stream_options={"include_usage": True}, **fields).events:
        # The client has one type for both; OpenAI's own chunks carry null there, too.
        event["choices"] = [
            choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in event["choices"]
        ]
        strictly(Completion, json.dumps(event))


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}], ids=["plain", "all"]
)
@pytest.mark.parametrize("include_usage", [False, True])
def test_report_11_chat_parses_strictly(live, fields, include_usage):
    strictly(ChatCompletion, live.chat(**fields).body)
    for event in live.chat(stream=True, stream_options={"include_usage": include_usage}, **fields).events:
        strictly(ChatCompletionChunk, json.dumps(event))


def strictly(model, body) -> None:
    model.model_validate_json(body, strict=True)
