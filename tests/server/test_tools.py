"""Tools in chat completions: what is taken, what the model is shown, and how its calls are answered."""

import json
from collections.abc import Sequence

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests import toys
from tests.server.test_protocol import chat
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.errors import InvalidRequest

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)
CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "parameters": CITIES}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "now"}}]
CALL = b'<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TWO_CALLS = CALL + b'\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
OTHER_FORMS = {
    "llama3_json": b'{"name": "get_weather", "parameters": {"city": "Oslo"}}',
    "mistral": b'[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
    "pythonic": b"[get_weather(city='Oslo')]",
}


def saying(tokenizer: Tokenizer, script: bytes):
    """Means to say `script`, and goes on at the same length where it was made to say something else."""

    def next_token(context: Sequence[int]) -> int:
        said = tokenizer.decode(context).rpartition("[assistant]")[2].encode()
        return script[len(said)] if len(said) < len(script) else min(tokenizer.eos_ids)

    return next_token


@pytest.fixture
def answering(make_live):
    """answering(script, **toy): a server whose model writes calls as hermes models do."""

    def make(script: bytes | Sequence[int], **toy):
        options = {"tool_parser": "hermes", "max_model_len": 2000, "num_blocks": (1000,)} | toy
        tokenizer = options.setdefault("tokenizer", toys.byte_level_tokenizer(template=TEMPLATE))
        if isinstance(script, bytes):
            options["next_token"] = saying(tokenizer, script)
        return make_live(script, **options)

    return make


def whole(server, **fields) -> tuple[dict, str]:
    """The message and the finish reason."""
    answer = server.chat(**fields)
    assert answer.status == 200, answer.body
    ChatCompletion.model_validate_json(answer.body, strict=True)
    (choice,) = answer.json["choices"]
    return choice["message"], choice["finish_reason"]


def streamed(server, **fields) -> tuple[dict, str]:
    """The same from a stream, put together as OpenAI's documentation says."""
    message: dict = {"content": None}
    finish_reason = None
    for event in server.chat(stream=True, **fields).events:
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
        (choice,) = event["choices"]
        delta, finish_reason = choice["delta"], choice["finish_reason"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if "id" in call:
                assert call["index"] == len(calls)
                assert call["function"]["arguments"] == ""
                calls.append({key: value for key, value in call.items() if key != "index"})
            else:
                assert set(call["function"]) == {"arguments"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message, finish_reason


def both(server, **fields) -> tuple[dict, str]:
    """What whole and stream say, once they are known to say the same; ids differ from request to request."""
    (message, reason), (streamed_message, streamed_reason) = whole(server, **fields), streamed(server, **fields)
    for each in (*message.get("tool_calls", ()), *streamed_message.get("tool_calls", ())):
        each["id"] = len(each["id"])
    kept = {key: value for key, value in message.items() if key not in ("role", "refusal")}
    assert streamed_message | {"content": streamed_message["content"] or kept["content"]} == kept
    assert streamed_reason == reason
    return message, reason


def functions(message: dict) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]


def test_calls_are_answered_as_openai_does(answering):
    message, reason = both(answering(TWO_CALLS), tools=TOOLS)
    assert functions(message) == [("get_weather", '{"city": "Oslo"}'), ("now", "{}")]
    assert message["content"] is None
    assert reason == "tool_calls"
    assert [(call["type"], call["id"]) for call in message["tool_calls"]] == [("function", 29)] * 2


def test_ids_differ_and_begin_as_openais(answering):
    message, _ = whole(answering(TWO_CALLS), tools=TOOLS)
    first, second = (call["id"] for call in message["tool_calls"])
    assert first.startswith("call_")
    assert first != second


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_every_form_of_calls(answering, form):
    message, reason = both(answering(OTHER_FORMS[form], tool_parser=form), tools=TOOLS)
    assert functions(message) == [("get_weather", '{"city": "Oslo"}')]
    assert reason == "tool_calls"
    assert message["tool_calls"][0]["id"] == (9 if form == "mistral" else 29)


def test_marks_that_are_special_tokens_are_read_and_not_shown(answering):
    vocabulary = toys.byte_level_vocabulary(template=TEMPLATE)
    vocabulary.backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    tokenizer = toys.as_tokenizer(vocabulary)
    script = [tokenizer.special_id("[TOOL_CALLS]"), *b"now", tokenizer.special_id("[ARGS]"), *b"{}"]
    message, reason = both(answering(script, tokenizer=tokenizer, tool_parser="mistral"), tools=TOOLS)
    assert (functions(message), message["content"], reason) == ([("now", "{}")], None, "tool_calls")


def test_text_before_a_call_is_content(answering):
    message, reason = both(answering(b"I look it up.\n" + CALL), tools=TOOLS)
    assert message["content"] == "I look it up."
    assert (len(message["tool_calls"]), reason) == (1, "tool_calls")


@pytest.mark.parametrize(
    "script", [b"hello", CALL.replace(b"{", b"(", 1), CALL.replace(b"get", b"set"), b"<tool_call>"]
)
def test_an_answer_without_a_call_is_text(answering, script):
    message, reason = both(answering(script), tools=TOOLS)
    assert message == {"role": "assistant", "content": script.decode(), "refusal": None}
    assert reason == "stop"


def test_a_call_that_is_cut_off_ends_with_length(answering):
    message, reason = both(answering(CALL), tools=TOOLS, max_tokens=CALL.index(b"slo"))
    assert functions(message) == [("get_weather", '{"city": "O')]
    assert reason == "length"


def test_tool_choice_none_shows_no_tools_and_takes_no_calls(answering):
    server = answering(CALL)
    message, reason = both(server, tools=TOOLS, tool_choice="none")
    assert (message["content"], reason) == (CALL.decode(), "stop")
    assert "tool_calls" not in message
    none, auto, without = (
        server.chat(**fields).json["usage"]["prompt_tokens"]
        for fields in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS}, {})
    )
    assert none == without < auto


def test_parallel_tool_calls_false_gives_the_first_call_only(answering):
    server = answering(TWO_CALLS)
    assert len(both(server, tools=TOOLS, parallel_tool_calls=True)[0]["tool_calls"]) == 2
    message, reason = both(server, tools=TOOLS, parallel_tool_calls=False)
    assert functions(message) == [("get_weather", '{"city": "Oslo"}')]
    assert reason == "tool_calls"


def test_the_template_gets_the_tools_as_the_client_sent_them(answering):
    strict = [{"type": "function", "function": FUNCTION | {"strict": False, "description": None}}]
    text = json.dumps(TOOLS[0]) + "[user]hi[assistant]"
    assert answering(CALL).chat(tools=strict).json["usage"]["prompt_tokens"] == len(
        toys.byte_level_tokenizer().encode(text)
    )


def test_every_choice_has_calls_of_its_own(answering):
    server = answering(CALL)
    choices = server.chat(tools=TOOLS, n=2).json["choices"]
    assert [functions(choice["message"]) for choice in choices] == [[("get_weather", '{"city": "Oslo"}')]] * 2
    events = server.chat(tools=TOOLS, n=2, stream=True).events
    for index in range(2):
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        pieces = [c["function"]["arguments"] for one in mine for c in one["delta"].get("tool_calls", ())]
        assert "".join(pieces) == '{"city": "Oslo"}'
        assert mine[-1]["finish_reason"] == "tool_calls"


def test_who_counts_tokens_gets_them_all(answering):
    server = answering(CALL)
    fields = {"tools": TOOLS, "return_token_ids": True, "logprobs": True}
    ids = server.chat(**fields).json["choices"][0]["token_ids"]
    choices = [event["choices"][0] for event in server.chat(stream=True, **fields).events]
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == ids
    assert sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"]) == len(ids)


def test_the_openai_client_follows_a_stream_of_calls(answering):
    server = answering(TWO_CALLS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "hi"}]
        with client.chat.completions.stream(model="toy", messages=messages, tools=TOOLS) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            message = stream.get_final_completion().choices[0].message
        assert [(event.name, event.arguments) for event in done] == [("get_weather", '{"city": "Oslo"}'), ("now", "{}")]
        assert [call.function.name for call in message.tool_calls] == ["get_weather", "now"]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls]
        again = client.chat.completions.create(model="toy", messages=[*messages, message, *results], tools=TOOLS)
        assert len(again.choices[0].message.tool_calls) == 2


def test_a_model_whose_form_of_calls_is_unknown_takes_no_tools(answering):
    server = answering(CALL, tool_parser=None)
    error = server.chat(tools=TOOLS).error
    assert error["param"] == "tools"
    assert "--tool-call-parser" in error["message"]
    assert server.chat(tools=TOOLS, tool_choice="none").status == 200


def test_a_template_without_a_place_for_tools_takes_none(answering):
    server = answering(CALL, tokenizer=toys.byte_level_tokenizer(template=toys.CHAT_TEMPLATE))
    error = server.chat(tools=TOOLS).error
    assert error["param"] == "tools"
    assert "--chat-template" in error["message"]
    assert server.chat(tools=TOOLS, tool_choice="none").status == 200


def tool(**function) -> dict:
    return {"type": "function", "function": {"name": "f"} | function}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": {}}),
        ("tools", {"tools": [tool()] * 2}),
        ("tools", {"tools": [tool(name=f"f{i}") for i in range(129)]}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
        *(("tools", {"tools": [tool(name=name)]}) for name in ("", "a b", "é", "a\n", "a" * 65, 1)),
        ("tools", {"tools": [tool(description=1)]}),
        ("tools", {"tools": [tool(parameters="x")]}),
        ("tools", {"tools": [tool(strict=1)]}),
        ("tools", {"tools": [tool(unknown=1)]}),
        ("tool_choice", {"tools": [tool()], "tool_choice": "any"}),
        ("tool_choice", {"tools": [tool()], "tool_choice": "f"}),
        ("tool_choice", {"tools": [tool()], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
        ("tool_choice", {"tool_choice": "auto"}),
        ("tool_choice", {"tool_choice": "required", "tools": []}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("parallel_tool_calls", {"parallel_tool_calls": True}),
        ("parallel_tool_calls", {"tools": [tool()], "parallel_tool_calls": 1}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("function_call", {"function_call": "auto"}),
    ],
    ids=str,
)
def test_what_is_no_tool_or_choice_is_refused(param, fields):
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_names_that_openai_takes():
    assert chat(tools=[tool(name=name) for name in ("a", "A-b_9", "a" * 64)]).offered_tools
    assert chat(tools=[]).offered_tools == []


NAMED = {"type": "function", "function": {"name": "get_weather"}}
STRICT = [{"type": "function", "function": FUNCTION | {"strict": True}}, TOOLS[1]]


@pytest.mark.parametrize(
    ("script", "choice", "expected"),
    [
        (CALL, None, (1, "tool_calls")),
        (CALL, "auto", (1, "tool_calls")),
        (b"hello", "auto", (0, "stop")),
        (CALL, "none", (0, "stop")),
        (b"hello", "none", (0, "stop")),
        (CALL, "required", (1, "tool_calls")),
        (b"hello", "required", (1, "tool_calls")),
        (CALL, NAMED, (1, "stop")),
        (b"hello", NAMED, (1, "stop")),
    ],
    ids=str,
)
def test_report_84_tool_choice_and_finish_reason(answering, script, choice, expected):
    message, reason = both(answering(script), tools=TOOLS, tool_choice=choice)
    assert (len(message.get("tool_calls", ())), reason) == expected
    assert message.get("tool_calls") != []
    if choice in ("required", NAMED):
        assert message["content"] is None


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_report_84_a_choice_without_tools_or_of_an_unknown_one(answering, choice):
    server = answering(CALL)
    for fields in ({"tool_choice": choice}, {"tool_choice": NAMED}, {"tools": [tool()], "tool_choice": NAMED}):
        for stream in (False, True):
            answer = server.chat(stream=stream, **fields)
            if fields["tool_choice"] == "none":  # which is how it is without tools
                assert answer.status == 200
            else:
                assert (answer.status, answer.error["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("form", ["hermes", *OTHER_FORMS])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_must_be_made_is_well_formed_whatever_the_model_says(answering, form, choice):
    message, _ = both(answering(b"I would rather not.", tool_parser=form), tools=TOOLS, tool_choice=choice)
    assert message["tool_calls"]
    for name, arguments in functions(message):
        jsonschema.validate(json.loads(arguments), CITIES if name == "get_weather" else {"maxProperties": 0})
        assert choice == "required" or name == "get_weather"
    assert message["content"] is None


def test_a_call_that_must_be_made_has_its_marks_as_special_tokens(answering):
    vocabulary = toys.byte_level_vocabulary(template=TEMPLATE + "{{ '' if true else '[ARGS]' }}")
    vocabulary.backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    tokenizer = toys.as_tokenizer(vocabulary)
    server = answering(b"I would rather not.", tokenizer=tokenizer, tool_parser="mistral")
    fields = {"tools": TOOLS, "tool_choice": NAMED}
    message, reason = both(server, **fields)
    ((_, arguments),) = functions(message)
    jsonschema.validate(json.loads(arguments), CITIES)
    assert (message["content"], reason) == (None, "stop")
    ids = server.chat(return_token_ids=True, **fields).json["choices"][0]["token_ids"]
    assert ids[0] == tokenizer.special_id("[TOOL_CALLS]")
    assert tokenizer.special_id("[ARGS]") in ids


def test_several_calls_that_must_be_made(answering):
    server = answering(TWO_CALLS)
    message, reason = both(server, tools=TOOLS, tool_choice="required")
    assert (functions(message), reason) == ([("get_weather", '{"city": "Oslo"}'), ("now", "{}")], "tool_calls")
    message, reason = both(server, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert (functions(message), reason) == ([("get_weather", '{"city": "Oslo"}')], "tool_calls")
    message, reason = both(server, tools=TOOLS, tool_choice=NAMED)
    assert (functions(message), reason) == ([("get_weather", '{"city": "Oslo"}')], "stop")


@pytest.mark.parametrize("form", ["hermes", "llama3_json", "mistral"])
def test_calls_of_strict_functions_keep_to_their_schema_and_text_is_free(answering, form):
    script = (CALL if form == "hermes" else OTHER_FORMS[form]).replace(b"Oslo", b"Paris")
    template = TEMPLATE + ("{{ '' if true else '[ARGS]' }}" if form == "mistral" else "")
    options = {"tool_parser": form, "tokenizer": toys.byte_level_tokenizer(template=template)}
    message, reason = both(answering(script, **options), tools=TOOLS)
    assert functions(message) == [("get_weather", '{"city": "Paris"}')]
    message, reason = both(answering(script, **options), tools=STRICT)
    ((name, arguments),) = functions(message)
    assert (name, reason) == ("get_weather", "tool_calls")
    jsonschema.validate(json.loads(arguments), CITIES)
    message, reason = both(answering(b"It rains.", **options), tools=STRICT)
    assert (message["content"], reason) == ("It rains.", "stop")


def test_strict_pythonic_calls_are_refused_unless_one_must_be_made(answering):
    server = answering(b"x", tool_parser="pythonic")
    error = server.chat(tools=STRICT).error
    assert error["param"] == "tools"
    assert "strict" in error["message"]
    assert server.chat(tools=STRICT, tool_choice="required").status == 200


@pytest.mark.parametrize(
    "parameters",
    [{"type": "string"}, {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, {"properties": {"a": 1}}],
    ids=str,
)
def test_a_schema_that_cannot_be_kept_to_is_refused(answering, parameters):
    answer = answering(b"x").chat(tools=[tool(parameters=parameters)], tool_choice="required")
    assert (answer.status, answer.error["param"]) == (400, "tools")


def test_what_does_not_go_with_a_call_is_refused(answering):
    server = answering(CALL)
    answer = server.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert (answer.status, answer.error["param"]) == (400, "response_format")
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 5}
    assert server.chat(tools=TOOLS, tool_choice="none", **fields).status == 200
    answer = server.chat(tools=TOOLS, tool_choice="required", use_beam_search=True)
    assert (answer.status, answer.error["param"]) == (400, "tool_choice")
