"""The fields of /v1/responses: those that a chat has too reach it as they are, the others have tests of their own."""

from tests.server import test_responses_api as answers
from tests.server import test_responses_fields as asked
from tests.server import test_responses_store as stored
from tests.server.fields.others import MODEL, listed
from tests.server.fields.said import Elsewhere, Entry, NoEffect, effect
from tests.server.fields.structured import STRUCTURED
from tests.server.fields.wrong import CHAT, GENERATION, NOT_TEXT, NOT_TRUE_OR_FALSE, Wrong
from xlaserve.server.protocol.generation import TextRequest

_LIKE_CHAT = Elsewhere(asked.test_sampling_is_that_of_a_chat)
_INSIDE = [name for name in STRUCTURED if name.startswith("structured_outputs")]
_ITEMS = Elsewhere(asked.test_items_of_earlier_turns_become_messages)
_BESIDE = Elsewhere(asked.test_what_an_answers_items_hold_beside_is_not_for_the_model)
_FORMATS = Elsewhere(asked.test_text_formats)
_CHOICE = Elsewhere(answers.test_tool_choice)
_TOOLS = Elsewhere(asked.test_tools_are_those_of_a_chat)
_EFFORT = Elsewhere(asked.test_reasoning_effort_is_the_templates)

RESPONSES: dict[str, Entry] = {
    **dict.fromkeys((*TextRequest.model_fields, *_INSIDE, "thinking_token_budget"), _LIKE_CHAT),
    **dict.fromkeys(("priority", "timeout", "cache_salt"), Elsewhere(asked.test_scheduling_is_that_of_a_chat)),
    "model": MODEL,
    "stream": Elsewhere(answers.test_a_text_is_answered_with_a_message),
    "stream_options": NoEffect("what it may hold has no effect"),
    "stream_options.include_obfuscation": NoEffect("false is all that is taken"),
    **dict.fromkeys(("input", "input.role", "input.content"), Elsewhere(answers.test_the_prompt_is_that_of_a_chat)),
    **dict.fromkeys(("input.type", "input.call_id", "input.name", "input.arguments"), _ITEMS),
    **dict.fromkeys(("input.output", "input.summary"), _ITEMS),
    "input.id": Elsewhere(stored.test_items_that_led_to_a_response),
    **dict.fromkeys(("input.status", "input.phase", "input.parsed_arguments"), _BESIDE),
    "instructions": Elsewhere(answers.test_the_prompt_is_that_of_a_chat),
    "previous_response_id": Elsewhere(stored.test_a_conversation_goes_on),
    "max_output_tokens": Elsewhere(answers.test_max_output_tokens),
    **dict.fromkeys(("text", "text.format", "text.format.type", "text.format.schema"), _FORMATS),
    **dict.fromkeys(("text.format.name", "text.format.description", "text.format.strict"), _FORMATS),
    **dict.fromkeys(("tools", "tools.type", "tools.name", "tools.description"), _TOOLS),
    **dict.fromkeys(("tools.parameters", "tools.strict"), _TOOLS),
    **dict.fromkeys(("tool_choice", "tool_choice.type", "tool_choice.name"), _CHOICE),
    "parallel_tool_calls": Elsewhere(answers.test_calls),
    "reasoning": _EFFORT,
    "reasoning.effort": _EFFORT,
    "include": Elsewhere(answers.test_logprobs_are_those_of_the_text),
    "top_logprobs": Elsewhere(answers.test_logprobs_are_those_of_the_text),
    "truncation": Elsewhere(asked.test_truncation_leaves_out_the_oldest_turns),
    "store": Elsewhere(stored.test_what_is_not_to_be_stored_is_not),
    "user": Elsewhere(asked.test_what_is_asked_is_told_again),
    "metadata": Elsewhere(asked.test_what_is_asked_is_told_again),
    "chat_template_kwargs": _EFFORT,
}
RESPONSE_QUERY: dict[str, Entry] = {"stream": NoEffect("false is all that is taken")}
ITEMS_QUERY: dict[str, Entry] = {
    "limit": effect(1, lambda without, with_it, _: listed(with_it) == listed(without)[:1] != listed(without)),
    "after": effect(
        lambda ask: listed(ask())[0],
        lambda without, with_it, _: listed(with_it) == listed(without)[1:] != listed(without),
    ),
    "order": effect("asc", lambda without, with_it, _: listed(with_it) == listed(without)[::-1] != listed(without)),
}


def _in(around: dict, field: str, *values: object) -> list:
    return [[around | {field: value}] for value in values]


_MESSAGE = {"type": "message", "role": "user", "content": "x"}
_CALL = {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}
_TOOL = {"type": "function", "name": "a"}
_SCHEMA = {"type": "json_schema", "schema": {}}
_REASONING = {"type": "reasoning", "summary": []}


def _formats(field: str, *values: object, around: dict) -> list:
    return [{"format": around | {field: value}} for value in values]


WRONG: Wrong = {
    **{name: GENERATION[name] for name in (*TextRequest.model_fields, *_INSIDE)},
    "stream_options": [{}],  # without stream
    "stream_options.include_obfuscation": GENERATION["stream_options.include_obfuscation"],
    "input": [None, 5, [], ["x"], [{}], {}],
    "input.id": _in(_MESSAGE, "id", 5, []),
    "input.status": _in(_MESSAGE, "status", "x", 5),
    "input.type": _in(_MESSAGE, "type", "x", 5, ["message"], "item_reference"),
    "input.role": _in(_MESSAGE, "role", "tool", 5, None),
    "input.content": _in(_MESSAGE, "content", 5, None, [5], [{"type": "input_image"}], [{"type": []}]),
    "input.phase": _in(_MESSAGE, "phase", "x", 5),
    "input.call_id": _in(_CALL, "call_id", 5, None),
    "input.name": _in(_CALL, "name", 5, None),
    "input.arguments": _in(_CALL, "arguments", "", "{", "[]", {}),
    "input.parsed_arguments": _in(_MESSAGE, "parsed_arguments", {}),
    "input.output": [[_CALL, {"type": "function_call_output", "call_id": "c", "output": 5}]],
    "input.summary": _in(_REASONING, "summary", 5, [5], [{"type": "input_text", "text": "x"}]),
    "instructions": NOT_TEXT,
    "previous_response_id": [*NOT_TEXT, "resp_x", ""],
    "max_output_tokens": [0, -1, 1.5, "5", True],
    "text": ["x", [], {"verbosity": "low"}],
    "text.format": [{"format": value} for value in ("text", 5, {})],
    "text.format.type": _formats("type", "xml", 5, ["text"], "structural_tag", around={}),
    "text.format.name": _formats("name", *NOT_TEXT, around=_SCHEMA),
    "text.format.description": _formats("description", *NOT_TEXT, around=_SCHEMA),
    "text.format.schema": _formats("schema", {"items": 3}, 5, None, around=_SCHEMA),
    "text.format.strict": _formats("strict", *NOT_TRUE_OR_FALSE, around=_SCHEMA),
    "tools": ["x", [5], [{}], [_TOOL] * 2, [_TOOL] * 129],
    "tools.type": _in(_TOOL, "type", "web_search", "custom", 5),
    "tools.name": _in(_TOOL, "name", "", "a b", "x" * 65, 5),
    "tools.description": _in(_TOOL, "description", 5),
    "tools.parameters": _in(_TOOL, "parameters", 5, [], "x"),
    "tools.strict": _in(_TOOL, "strict", *NOT_TRUE_OR_FALSE),
    "tool_choice": ["any", 5, [], {}, "required", {"type": "allowed_tools", "mode": "auto", "tools": []}],
    "tool_choice.type": [{"type": "custom", "name": "a"}],
    "tool_choice.name": [{"type": "function", "name": "a"}],  # without tools
    "parallel_tool_calls": NOT_TRUE_OR_FALSE,
    "reasoning": ["low", [], {"summary": "auto"}],
    "reasoning.effort": [{"effort": value} for value in ("x", 5, "low")],  # the template does not read it
    "include": ["x", ["x"], ["reasoning.encrypted_content"], 5],
    "top_logprobs": [-1, 21, "1", True, 2],  # 2: without include
    "truncation": ["x", 5],
    "store": NOT_TRUE_OR_FALSE,
    "user": NOT_TEXT,
    "metadata": [{"a": 1}, {"a": "x" * 513}, {"x" * 65: "a"}, {str(n): "" for n in range(17)}, []],
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
    "thinking_token_budget": CHAT["thinking_token_budget"],
}
WRONG_RESPONSE_QUERY: Wrong = {"stream": ["true", "x"]}
WRONG_ITEMS_QUERY: Wrong = {"limit": [0, 101, "x"], "after": ["no"], "order": ["up"]}
