"""Chat messages as OpenAI defines them, and what a chat template gets."""

import pytest

from xlaserve.errors import InvalidRequest
from xlaserve.server.protocol.chat import parse_chat

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def for_template(message: dict) -> dict:
    return parse_chat({"model": "m", "messages": [message]}).messages[0].for_template()


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_report_75_text_parts_are_joined_by_a_newline(role):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert for_template({"role": role, "content": parts}) == {"role": role, "content": "a\nb"}
    assert for_template({"role": role, "content": "a"}) == {"role": role, "content": "a"}
    assert for_template({"role": role, "content": ""}) == {"role": role, "content": ""}


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}], ids=str)
def test_report_74_an_assistant_that_called_tools_needs_no_content(content):
    message = for_template({"role": "assistant", "tool_calls": [CALL], **content})
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


def test_report_74_a_tools_answer_keeps_its_call_id():
    message = {"role": "tool", "tool_call_id": "c1", "content": "4"}
    assert for_template(message) == message


def test_the_openai_clients_own_message_may_be_sent_back():
    echo = dict.fromkeys(["refusal", "annotations", "audio", "function_call", "tool_calls"])
    assert for_template({"role": "assistant", "content": "x", **echo}) == {"role": "assistant", "content": "x"}
    assert for_template({"role": "assistant", "content": "x", "annotations": []})["content"] == "x"


def test_an_assistant_may_have_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    assert for_template({"role": "assistant", "content": parts})["content"] == "a\nno"
    assert for_template({"role": "assistant", "content": None, "refusal": "no"})["content"] == "no"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": None}, "content"),
        ({"role": "user"}, "content"),
        ({"role": "system", "content": None}, "content"),
        ({"role": "tool", "content": None}, "content"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "tool_calls"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "c1"}, "tool_call_id"),
        ({"role": "foo", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": "x", "unknown": 1}, "unknown"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "refusal"),
        ({"role": "user", "refusal": "no"}, "refusal"),
        ({"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}, "refusal part"),
        ({"role": "user", "content": ["x"]}, "type"),
        ({"role": "user", "content": [{"text": "x"}]}, "type"),
        ({"role": "user", "content": [{"type": "text"}]}, "text part"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "text part"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "refusal"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, "image input"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "audio input"),
        ({"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]}, "JSON object"),
    ],
    ids=str,
)
def test_a_wrong_message_is_refused(message, reason):
    with pytest.raises(InvalidRequest, match=reason) as caught:
        for_template(message)
    assert caught.value.param == "messages"
