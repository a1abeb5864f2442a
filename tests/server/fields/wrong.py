"""Wrong values of every field: each is a 400 that names the field."""

from typing import Any

from tests.server.fields.chat import ANSWER, USER, named, tool
from tests.server.fields.generation import STREAM

Wrong = dict[str, list[Any]]
NOT_TRUE_OR_FALSE = [1, "true", []]
NOT_TEXT = [5, True, ["a"]]


def _in(field: str, values: list[Any], around: Any) -> list[Any]:
    """`around` with each of the values as its `field`."""
    return [around | {field: value} for value in values]


def _formats(values: list[Any]) -> list[Any]:
    return [{"type": "json_schema", "json_schema": {"schema": {}} | each} for each in values]


def _messages(*lasts: Any) -> list[Any]:
    return [[USER, last] for last in lasts]


def _call(function: Any = None, **fields: Any) -> Any:
    fields = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"} | (function or {})} | fields
    return {"role": "assistant", "tool_calls": [fields]}


GENERATION: Wrong = {
    "model": NOT_TEXT,
    "n": [0, 129, -1, 1.5, "2", True],
    "max_tokens": [-1, 1.5, "5", True],
    "temperature": [-0.1, 2.1, "1", True, []],
    "top_p": [0, -1, 1.1, "1", True],
    "top_k": [-2, 1.5, "1", True],
    "min_p": [-0.1, 1.1, "0", True],
    "presence_penalty": [-2.1, 2.1, "0", True],
    "frequency_penalty": [-2.1, 2.1, "0", True],
    "repetition_penalty": [0, -1, 101, "1"],
    "logit_bias": [{"a": 1}, {"-1": 1}, {"999999": 1}, {"5": 101}, {"5": "1"}, [1]],
    "allowed_token_ids": [[], [-1], [999_999], ["1"], 5],
    "bad_words": [[""], [5], 5],
    "prompt_logprobs": [-1, 21, 1.5, "1", True],
    "min_tokens": [-1, 1.5, "1", 1000],
    "seed": [1.5, "1", 2**63, True],
    "stop": ["", [""], [*"abcde"], [1], 5],
    "stop_token_ids": [[-1], [999_999], ["1"], 5],
    "ignore_eos": NOT_TRUE_OR_FALSE,
    "skip_special_tokens": NOT_TRUE_OR_FALSE,
    "spaces_between_special_tokens": NOT_TRUE_OR_FALSE,
    "include_stop_str_in_output": NOT_TRUE_OR_FALSE,
    "response_format": ["json_object", [], {}],
    "response_format.type": [{"type": value} for value in ("xml", 5, ["text"])],
    "response_format.json_schema": [{"type": "json_schema", "json_schema": value} for value in ({}, [], "x", 5)],
    "response_format.json_schema.schema": _formats([{"schema": value} for value in ({"items": 3}, 5, [1], "x")]),
    "response_format.json_schema.name": _formats([{"name": value} for value in NOT_TEXT]),
    "response_format.json_schema.description": _formats([{"description": value} for value in NOT_TEXT]),
    "response_format.json_schema.strict": _formats([{"strict": value} for value in NOT_TRUE_OR_FALSE]),
    "response_format.structures": [
        {"type": "structural_tag", "triggers": ["<"], "structures": value} for value in ([], [5], [{}], "x")
    ],
    "response_format.triggers": [
        {"type": "structural_tag", "structures": [{"begin": "<", "schema": {}, "end": ">"}], "triggers": value}
        for value in ([], [5], ["x"], "<")
    ],
    "structured_outputs": [{}, [], "x", {"json_object": False}, {"regex": "a", "choice": ["a"]}],
    "structured_outputs.json": [{"json": value} for value in ({"items": 3}, 5, [1])],
    "structured_outputs.regex": [{"regex": value} for value in ("(", "", 5)],
    "structured_outputs.choice": [{"choice": value} for value in ([], [5], "a")],
    "structured_outputs.grammar": [{"grammar": value} for value in ("no grammar", 5, "")],
    "structured_outputs.json_object": [{"json_object": value} for value in NOT_TRUE_OR_FALSE],
    "structured_outputs.structural_tag": [{"structural_tag": value} for value in ({}, "x", 5)],
    "guided_json": [{"items": 3}, 5, [1]],
    "guided_regex": ["(", "", 5],
    "guided_choice": [[], [5], "a"],
    "guided_grammar": ["no grammar", 5, ""],
    "use_beam_search": NOT_TRUE_OR_FALSE,
    "beam_width": [0, 11, 1.5, "2", 2],  # 2: without use_beam_search
    "length_penalty": [11, "1", True, 0.5],  # 0.5: without use_beam_search
    "return_token_ids": NOT_TRUE_OR_FALSE,
    "return_tokens_as_token_ids": [*NOT_TRUE_OR_FALSE, True],  # True: without logprobs
    "return_timings": NOT_TRUE_OR_FALSE,
    "truncate_prompt_tokens": [0, -2, 1.5, "1", True],
    "add_special_tokens": NOT_TRUE_OR_FALSE,
    "request_id": ["", "a b", "é", "x" * 129, 5],
    "priority": ["1", 1.5, True],
    "timeout": [0, -1, "1", True],
    "cache_salt": ["", 5],
    "stream": NOT_TRUE_OR_FALSE,
    "stream_options": [{"include_usage": True}],  # without stream
    "user": NOT_TEXT,
    "metadata": [{"a": 1}, [], "x"],
}
# Of fields that are refused for other reasons without these.
BESIDE: dict[str, dict[str, Any]] = {
    "stream_options.include_usage": STREAM,
    "stream_options.continuous_usage_stats": STREAM,
    "stream_options.include_obfuscation": {"stream": True},
}
GENERATION |= {
    "stream_options.include_usage": [{"include_usage": value} for value in NOT_TRUE_OR_FALSE],
    "stream_options.continuous_usage_stats": [
        {"continuous_usage_stats": value} for value in (*NOT_TRUE_OR_FALSE, True)
    ],
    "stream_options.include_obfuscation": [{"include_obfuscation": value} for value in (True, 0, "false")],
}
COMPLETION: Wrong = {
    "prompt": [[], [[]], 5, [-1], [999_999], [1.5], ["a", 1]],
    "logprobs": [-1, 6, True, "1"],
    "best_of": [0, 21, -1, 1.5, "2", True],
    "echo": NOT_TRUE_OR_FALSE,
}
CHAT: Wrong = {
    "messages": [[], "hi", [{}], [5], {}],
    "messages.role": _messages({"role": "foo", "content": "x"}, {"role": 5, "content": "x"}, {"content": "x"}),
    "messages.content": _messages({"role": "user", "content": None}, {"role": "user", "content": 5}, {"role": "user"}),
    "messages.name": _messages(USER | {"name": 5}),
    "messages.tool_calls": _messages(
        ANSWER | {"tool_calls": []}, USER | _call() | {"role": "user"}, ANSWER | {"tool_calls": "x"}
    ),
    "messages.tool_calls.id": _messages(_call(id=5), _call(id=[])),
    "messages.tool_calls.type": _messages(_call(type="x"), _call(type=5)),
    "messages.tool_calls.index": _messages(_call(index="x"), _call(index=True)),
    "messages.tool_calls.function": _messages(_call() | {"tool_calls": [{"id": "1", "function": 5}]}),
    "messages.tool_calls.function.name": _messages(_call({"name": 5})),
    "messages.tool_calls.function.arguments": _messages(
        *(_call({"arguments": value}) for value in ("", "{", "[]", {}))
    ),
    "messages.tool_calls.function.parsed_arguments": [],
    "messages.tool_call_id": _messages(
        USER | {"tool_call_id": "1"}, {"role": "tool", "content": "", "tool_call_id": 5}
    ),
    "messages.refusal": _messages(USER | {"refusal": "x"}, {"role": "assistant", "refusal": 5}),
    "messages.reasoning_content": _messages(USER | {"reasoning_content": "x"}, ANSWER | {"reasoning_content": 5}),
    "messages.annotations": _messages(ANSWER | {"annotations": [{}]}, ANSWER | {"annotations": "x"}),
    "max_completion_tokens": [0, -1, 1.5, "5", True],
    "logprobs": [1, "true", []],
    "top_logprobs": [2],  # without logprobs
    "tools": ["x", [5], [{}], [tool()] * 2, [tool()] * 129],
    "tools.type": [[tool() | {"type": "x"}]],
    "tools.function": [[{"type": "function"}], [{"type": "function", "function": 5}]],
    "tools.function.name": [[tool(name)] for name in ("", "a b", "é", "x" * 65)],
    "tools.function.description": [[tool(description=5)]],
    "tools.function.parameters": [[tool(parameters=value)] for value in (5, [], "x")],
    "tools.function.strict": [[tool(strict=value)] for value in NOT_TRUE_OR_FALSE],
    "tool_choice": ["any", 5, [], {}, "required"],  # the last: without tools
    "tool_choice.type": [named("a") | {"type": "x"}],
    "tool_choice.function": [{"type": "function"}, {"type": "function", "function": "a"}],
    "tool_choice.function.name": [named("other")],
    "parallel_tool_calls": [*NOT_TRUE_OR_FALSE, False],  # the last: without tools
    "reasoning_effort": ["x", 5, "low"],  # the last: the template does not read it
    "include_reasoning": NOT_TRUE_OR_FALSE,
    "add_generation_prompt": NOT_TRUE_OR_FALSE,
    "continue_final_message": [*NOT_TRUE_OR_FALSE, True],  # the last: with add_generation_prompt
    "chat_template": [5, ["a"], "{{ messages }}"],  # the last: this server takes none
    "chat_template_kwargs": [{"other": 1}, {"messages": []}, [], "x"],
    "documents": ["x", [5], {}],
    "thinking_token_budget": [-1, 1.5, "1", True],
}
TOKENIZE: Wrong = {name: values for name, values in CHAT.items() if name.startswith("messages.")} | {
    "model": NOT_TEXT,
    "prompt": NOT_TEXT,
    "messages": [[], "x", [5]],
    "add_special_tokens": NOT_TRUE_OR_FALSE,
    "add_generation_prompt": NOT_TRUE_OR_FALSE,
    "return_token_strs": NOT_TRUE_OR_FALSE,
}
DETOKENIZE: Wrong = {"model": NOT_TEXT, "tokens": [[-1], [999_999], ["1"], "x", [1.5], [True], 5]}
BATCH: Wrong = {
    "input_file_id": ["file-" + "0" * 32, "../../etc/passwd", 5],
    "endpoint": ["/v1/models", 5],
    "completion_window": ["1h", 24],
    "metadata": [{"a": 1}, {"a": "x" * 513}, {"x" * 65: "a"}, {str(n): "" for n in range(17)}, []],
}
FILES_QUERY: Wrong = {"limit": [0, 10_001, "x"], "after": ["no"], "order": ["up"], "purpose": []}
BATCHES_QUERY: Wrong = {"limit": [0, 101, "x"], "after": ["no"]}
