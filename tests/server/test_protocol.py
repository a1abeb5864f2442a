"""Requests: every field is honoured or refused, with strict types; errors name the field."""

import pytest

from xlaserve.errors import InvalidRequest
from xlaserve.sampling_params import SamplingParams
from xlaserve.scheduling_params import SchedulingParams
from xlaserve.server.protocol.chat import ChatRequest, parse_chat
from xlaserve.server.protocol.completion import CompletionRequest, parse_completion

USER = {"role": "user", "content": "hi"}


def completion(**fields) -> CompletionRequest:
    return parse_completion({"model": "m", "prompt": "hi"} | fields)


def chat(**fields) -> ChatRequest:
    return parse_chat({"model": "m", "messages": [USER]} | fields)


def params(request, **defaults) -> SamplingParams:
    return request.sampling_params(defaults)


def test_defaults_are_openais():
    assert params(completion()) == SamplingParams(max_tokens=16, temperature=1.0, top_p=1.0)
    assert params(chat()) == SamplingParams(max_tokens=None, temperature=1.0, top_p=1.0)


def test_the_request_wins_over_the_checkpoints_defaults():
    defaults = {"temperature": 0.6, "top_k": 1}
    assert params(chat(), **defaults).temperature == 0.6
    assert params(chat(), **defaults).top_k == 1
    asked = params(chat(temperature=1, top_k=-1), **defaults)
    assert (asked.temperature, asked.top_k) == (1, 0)


def test_every_scheduling_field_arrives():
    for request in (completion(priority=-3, timeout=2), chat(priority=-3, timeout=2)):
        assert request.scheduling_params("alice") == SchedulingParams(priority=-3, timeout=2.0, tenant="alice")
    assert completion().scheduling_params("") == SchedulingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("priority", value) for value in (1.5, "1", True, 2**31, -(2**31))),
        *(("timeout", value) for value in (0, -1, -0.5, "5", True, [], float("inf"))),
    ],
)
def test_what_is_no_priority_or_timeout_is_refused(field, value):
    for parse in (completion, chat):
        with pytest.raises(InvalidRequest) as caught:
            parse(**{field: value}).scheduling_params("")
        assert caught.value.param == field


def test_every_sampling_field_arrives():
    fields = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "seed": 0,
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "logprobs": 0,
    }
    assert params(completion(**fields, stop="x")) == SamplingParams(**fields, stop=("x",))
    assert params(completion(stop=["x", "y"])).stop == ("x", "y")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
    ],
)
def test_max_completion_tokens_wins_in_chat(fields, expected):
    assert params(chat(**fields)).max_tokens == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 2}, 2),
    ],
)
def test_chat_logprobs(fields, expected):
    assert params(chat(**fields)).logprobs == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"unknown": 1},
        {"n": 0},
        {"n": 129},
        {"n": True},
        {"n": 1.0},
        {"cache_salt": 1},
        {"cache_salt": ""},
        {"store": True},
        {"model": 1},
        {"max_tokens": -1},
        {"max_tokens": "5"},
        {"max_tokens": 1.0},
        {"max_tokens": True},
        {"temperature": "1"},
        {"temperature": True},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"top_k": 1.5},
        {"seed": 1.5},
        {"seed": 2**63},
        {"stop": ""},
        {"stop": [""]},
        {"stop": ["", "x"]},
        {"stop": [1]},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": ["1"]},
        {"stop_token_ids": 1},
        {"ignore_eos": 1},
        {"ignore_eos": "true"},
        {"return_token_ids": 1},
        {"skip_special_tokens": 0},
        {"spaces_between_special_tokens": "no"},
        {"include_stop_str_in_output": 1},
        {"stream": "yes"},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {}},
        {"stream_options": [], "stream": True},
        {"stream_options": {"include_usage": 1}, "stream": True},
        {"stream_options": {"other": True}, "stream": True},
        {"user": 1},
        {"metadata": {"a": 1}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(fields):
    field = next(iter(fields))
    for parse in (completion, chat):
        with pytest.raises(InvalidRequest) as caught:
            params(parse(**fields))
        assert (caught.value.param, caught.value.status) == (field, 400)
        assert field in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 21, "logprobs": True},
        {"top_logprobs": -1, "logprobs": True},
        {"top_logprobs": 2},
        {"top_logprobs": 2, "logprobs": False},
        {"logprobs": 1},
        {"max_completion_tokens": 0},
        {"messages": []},
        {"messages": None},
        {"messages": "hi"},
        {"messages": {}},
        {"messages": [1]},
    ],
    ids=str,
)
def test_a_wrong_chat_value_is_refused_by_name(fields):
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize("value", [6, -1, True, "1", 1.0], ids=str)
def test_wrong_completion_logprobs(value):
    with pytest.raises(InvalidRequest) as caught:
        completion(logprobs=value)
    assert caught.value.param == "logprobs"


def test_missing_model():
    with pytest.raises(InvalidRequest, match="Missing required parameter: 'model'") as caught:
        parse_chat({"messages": [USER]})
    assert caught.value.param == "model"


def test_thousands_of_errors_make_a_short_message():
    with pytest.raises(InvalidRequest, match="and 4997 more") as caught:
        chat(messages=[{"role": "x" * 1000}] * 5_000)
    assert len(str(caught.value)) < 2_000
    with pytest.raises(InvalidRequest) as caught:
        chat(**{"x" * 100_000: 1})
    assert len(str(caught.value)) < 2_000
    assert len(caught.value.param or "") < 100


def test_include_usage():
    assert not completion(stream=True).include_usage
    for value in (False, None):
        assert not completion(stream=True, stream_options={"include_usage": value}).include_usage
    assert completion(stream=True, stream_options={"include_usage": True}).include_usage
    assert completion(stream=False, stream_options=None) == completion()
