"""What the fields of chat requests alone do."""

import json
from typing import Any

from tests.server import test_request_templates, test_responses_fields, test_tools
from tests.server.fields.generation import A, logprobs
from tests.server.fields.said import Ask, Elsewhere, Entry, NoEffect, Said, effect
from tests.server.tiny_server import BOS, EOS

USER = {"role": "user", "content": "What is the weather in Oslo?"}
TRUE = {"type": "object", "properties": {"a": {"const": True}}, "required": ["a"], "additionalProperties": False}
FALSE = TRUE | {"properties": {"a": {"const": False}}}
THINKING = {"chat_template_kwargs": {"thinking": True}, "max_tokens": 40}


def tool(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | more}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def shows(text: str):
    """The prompt has the text; without the field it has not."""
    return lambda without, with_it, _: text in with_it.prompt and text not in without.prompt


def _calls(said: Said) -> list[tuple[str, Any]]:
    calls = said.choice["message"].get("tool_calls", ())
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def calls(*expected: tuple[str, Any]):
    return lambda without, with_it, _: _calls(with_it) == list(expected) != _calls(without)


def _fewer_calls(without: Said, with_it: Said, _: Ask) -> bool:
    return len(_calls(with_it)) == 1 < len(_calls(without))


def _no_reasoning(without: Said, with_it: Said, _: Ask) -> bool:
    message, other = with_it.choice["message"], without.choice["message"]
    return "reasoning_content" not in message and other["reasoning_content"] and message["content"] == other["content"]


def _budgeted(without: Said, with_it: Said, _: Ask) -> bool:
    """The budget, and the mark that ends the reasoning."""
    used = [said.usage["completion_tokens_details"]["reasoning_tokens"] for said in (without, with_it)]
    return used[0] == 40 and used[1] == 5 + len("</think>")


def _messages(without: dict[str, Any], with_it: dict[str, Any], text: str) -> Entry:
    """A conversation that ends with one message or with the other."""
    return effect([USER, with_it], shows(text), messages=[USER, without])


def _call(**fields: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"} | fields.pop("function", {})
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function} | fields]}


# The model does as it is made to, and need not see the tools, which would fill its context.
CALLING = {"max_tokens": 150, "tools": [tool(parameters=TRUE)], "chat_template_kwargs": {"bare": True}}
MUST = CALLING | {"tool_choice": "required"}
ANSWER = {"role": "assistant", "content": "Sun"}
RESULT = {"role": "tool", "content": "Sun"}

CHAT: dict[str, Entry] = {
    "messages": effect([USER | {"content": "Hello you there?"}], shows("Hello you")),
    "messages.role": _messages({"role": "user", "content": "Sun"}, {"role": "system", "content": "Sun"}, "[system]"),
    "messages.content": _messages(ANSWER, ANSWER | {"content": "Rain"}, "Rain"),
    "messages.name": _messages(ANSWER, ANSWER | {"name": "Ann"}, "[assistant Ann]"),
    "messages.tool_calls": _messages(ANSWER, ANSWER | _call(), '"look"'),
    "messages.tool_calls.id": _messages(_call(), _call(id="77"), '"77"'),
    "messages.tool_calls.type": NoEffect("function is all there is"),
    "messages.tool_calls.index": NoEffect(
        "the openai client's messages hold it", [USER, _call(index=0)], [USER, _call()]
    ),
    "messages.tool_calls.function": _messages(_call(), _call(function={"name": "see"}), '"see"'),
    "messages.tool_calls.function.name": _messages(_call(), _call(function={"name": "see"}), '"see"'),
    "messages.tool_calls.function.arguments": _messages(_call(), _call(function={"arguments": '{"a": 1}'}), '{"a": 1}'),
    "messages.tool_calls.function.parsed_arguments": NoEffect(
        "the openai client's messages hold it", [USER, _call(function={"parsed_arguments": {}})], [USER, _call()]
    ),
    "messages.tool_call_id": _messages(RESULT, RESULT | {"tool_call_id": "77"}, "77"),
    "messages.refusal": _messages(ANSWER, {"role": "assistant", "refusal": "No"}, "[assistant]No"),
    "messages.reasoning_content": _messages(ANSWER, ANSWER | {"reasoning_content": "hm"}, "(hm)Sun"),
    "messages.annotations": NoEffect(
        "the openai client's messages hold none", [USER, ANSWER | {"annotations": []}], [USER, ANSWER]
    ),
    "max_completion_tokens": effect(
        3, lambda without, with_it, _: (len(without.ids), len(with_it.ids)) == (6, 3), **A, max_tokens=6
    ),
    "logprobs": effect(
        True, lambda without, with_it, _: len(logprobs(with_it)) == len(with_it.ids) and not without.choice["logprobs"]
    ),
    "top_logprobs": effect(
        2,
        lambda _, with_it, ask: {len(each["top_logprobs"]) for each in with_it.choice["logprobs"]["content"]} == {2},
        logprobs=True,
    ),
    "tools": effect([tool()], shows('"look"')),
    "tools.type": NoEffect("function is all there is"),
    "tools.function": effect([tool("see")], shows('"see"'), tools=[tool()]),
    "tools.function.name": effect([tool("see")], shows('"see"'), tools=[tool()]),
    "tools.function.description": effect([tool(description="Looks")], shows("Looks"), tools=[tool()]),
    "tools.function.parameters": effect(
        [tool(parameters=FALSE)], calls(("look", {"a": False})), **MUST, parallel_tool_calls=False
    ),
    "tools.function.strict": Elsewhere(test_tools.test_calls_of_strict_functions_keep_to_their_schema_and_text_is_free),
    "tool_choice": effect("required", calls(("look", {"a": True})), **CALLING, parallel_tool_calls=False),
    "tool_choice.type": NoEffect("function is all there is"),
    "tool_choice.function": effect(
        named("see"), calls(("see", {})), tool_choice=named("look"), tools=[tool(), tool("see")], max_tokens=150
    ),
    "tool_choice.function.name": effect(
        named("see"), calls(("see", {})), tool_choice=named("look"), tools=[tool(), tool("see")], max_tokens=150
    ),
    "parallel_tool_calls": effect(False, _fewer_calls, **MUST, logit_bias={"10": 100}),
    "reasoning_effort": Elsewhere(test_responses_fields.test_chat_takes_a_reasoning_effort_too),
    "include_reasoning": effect(False, _no_reasoning, **THINKING, thinking_token_budget=5),
    "add_generation_prompt": effect(
        False, lambda without, with_it, _: without.prompt == with_it.prompt + "[assistant]"
    ),
    "continue_final_message": effect(
        True,
        lambda without, with_it, _: without.prompt_ids == [*with_it.prompt_ids, EOS],
        messages=[USER, ANSWER],
        add_generation_prompt=False,
    ),
    "chat_template": Elsewhere(test_request_templates.test_a_request_may_bring_its_template),
    "chat_template_kwargs": effect({"thinking": True}, shows("[assistant]<think>")),
    "documents": effect([{"text": "Of the weather"}], shows("Of the weather")),
    "thinking_token_budget": effect(5, _budgeted, **THINKING),
    "add_special_tokens": effect(
        True,
        lambda without, with_it, _: with_it.prompt_ids == [BOS, *without.prompt_ids],
        chat_template_kwargs={"bare": True},
    ),
}
