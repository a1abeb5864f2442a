"""Reasoning in chat completions: told from the answer, counted, and left out on request."""

import pytest

from tests import toys
from tests.server.test_answers import uncached
from tests.server.test_tools import CALL, TEMPLATE, TOOLS, both, functions
from xlaserve.errors import InvalidRequest
from xlaserve.server.protocol.chat import parse_chat

THOUGHT = b"<think>\nLet me see.\n</think>\n\n"


@pytest.fixture
def thinking(make_live):
    """thinking(script): a server whose model thinks. Its template opens <think> where `opens` says so."""

    def make(script: bytes, *, opens: bool = False, **toy):
        tokenizer = toys.byte_level_tokenizer(template=TEMPLATE + ("<think>{{ '\\n' }}" if opens else ""))
        options = {"tokenizer": tokenizer, "tool_parser": "hermes", "thinks": True} | toy
        return make_live(script, **{"max_model_len": 1000, "num_blocks": (1000,)} | options)

    return make


def test_reasoning_is_apart_from_the_content(thinking):
    server = thinking(THOUGHT + b"It is 4.")
    message, reason = both(server)
    assert message == {
        "role": "assistant", "content": "It is 4.", "refusal": None, "reasoning_content": "Let me see."
    }  # fmt: skip
    assert reason == "stop"
    assert server.chat().json["usage"]["completion_tokens_details"] == {"reasoning_tokens": THOUGHT.index(b"\n\n")}


def test_a_template_may_have_opened_it(thinking):
    script = b"Let me see.\n</think>It is 4."
    message, _ = both(thinking(script, opens=True))
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "It is 4.")
    message, _ = both(thinking(script))
    assert message["content"] == script.decode()
    assert "reasoning_content" not in message


def test_a_model_that_does_not_think_keeps_its_marks(thinking):
    message, _ = both(thinking(THOUGHT + b"x", thinks=False))
    assert message["content"] == THOUGHT.decode() + "x"
    assert "reasoning_content" not in message


def test_reasoning_without_an_end(thinking):
    server = thinking(THOUGHT, opens=True)
    message, reason = both(server, max_tokens=12)
    assert (message["reasoning_content"], message["content"], reason) == ("Let", None, "length")
    assert server.chat(max_tokens=12).json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}


def test_reasoning_may_be_left_out(thinking):
    server = thinking(THOUGHT + b"It is 4.")
    message, _ = both(server, include_reasoning=False)
    assert message == {"role": "assistant", "content": "It is 4.", "refusal": None}
    usage = server.chat(include_reasoning=False).json["usage"]
    assert uncached(usage) == uncached(server.chat().json["usage"])


def test_usage_of_a_stream_counts_the_reasoning(thinking):
    server = thinking(THOUGHT + b"It is 4.")
    events = server.chat(stream=True, stream_options={"include_usage": True}).events
    assert uncached(events[-1]["usage"]) == uncached(server.chat().json["usage"])


def test_calls_come_after_the_reasoning(thinking):
    message, reason = both(thinking(THOUGHT + CALL), tools=TOOLS)
    assert (message["reasoning_content"], message["content"], reason) == ("Let me see.", None, "tool_calls")
    assert functions(message) == [("get_weather", '{"city": "Oslo"}')]
    message, reason = both(thinking(b"<think>" + CALL + b"</think>No."), tools=TOOLS)
    assert (message["reasoning_content"], message["content"], reason) == (CALL.decode(), "No.", "stop")


def test_an_assistants_reasoning_reaches_the_template():
    def message(role: str) -> dict:
        return {"role": role, "content": "x", "reasoning_content": "y"}

    parsed = parse_chat({"model": "m", "messages": [message("assistant")]})
    assert parsed.messages[0].for_template() == message("assistant")
    with pytest.raises(InvalidRequest, match="reasoning_content"):
        parse_chat({"model": "m", "messages": [message("user")]})


@pytest.mark.parametrize("opens", [True, False])
def test_a_thinking_budget_ends_the_reasoning(thinking, opens):
    script = b"Let me think of it for long.</think>It is 4." if opens else THOUGHT + b"It is 4."

    def next_token(context):  # what was not forced is as scripted; after the end of the reasoning, the answer
        text = tokenizer.decode(context).partition("[assistant]")[2].encode()
        text = text.removeprefix(b"<think>\n" if opens else b"")
        _, ended, answer = text.partition(b"</think>")
        rest = b"It is 4."[len(answer) :] if ended else script[len(text) :]
        return rest[0] if rest else min(tokenizer.eos_ids)

    server = thinking(script, opens=opens, next_token=next_token)
    tokenizer = server.service.tokenizer
    message, reason = both(server, thinking_token_budget=12)
    expected = "Let me think" if opens else "Let"
    assert (message["reasoning_content"], message["content"], reason) == (expected, "It is 4.", "stop")
    usage = server.chat(thinking_token_budget=12).json["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 12 + len(tokenizer.encode("</think>"))


@pytest.mark.parametrize("value", [-1, 1.5, "3", True])
def test_what_is_no_budget_is_refused(thinking, value):
    answer = thinking(b"x").chat(thinking_token_budget=value)
    assert (answer.status, answer.error["param"]) == (400, "thinking_token_budget")


def test_a_model_that_does_not_think_has_no_budget(thinking):
    answer = thinking(b"x", thinks=False).chat(thinking_token_budget=3)
    assert (answer.status, answer.error["param"]) == (400, "thinking_token_budget")
    assert "--reasoning-parser" in answer.error["message"]


def test_a_beam_search_has_no_budget(thinking):
    answer = thinking(b"x").chat(thinking_token_budget=3, use_beam_search=True)
    assert (answer.status, answer.error["param"]) == (400, "thinking_token_budget")


@pytest.mark.parametrize("opens", [True, False])
def test_what_rules_the_answer_begins_after_the_reasoning(thinking, opens):
    vocabulary = toys.byte_level_vocabulary(template=TEMPLATE + ("<think>" if opens else ""))
    vocabulary.backend.add_tokens(["<think>", "</think>"])
    tokenizer = toys.as_tokenizer(vocabulary)
    script = [*tokenizer.encode(("" if opens else "<think>") + "I would rather not.</think>"), *b"No."]
    server = thinking(script, tokenizer=tokenizer, next_token=None, answer=[*script, *tokenizer.eos_ids])
    message, reason = both(server, tools=TOOLS, tool_choice="required")
    assert (message["reasoning_content"], message["content"], reason) == ("I would rather not.", None, "tool_calls")
    message, reason = both(server, response_format={"type": "json_object"}, max_tokens=60)
    assert message["reasoning_content"] == "I would rather not."
    assert message["content"].startswith("{")
