"""Grammars of tool calls, by llguidance itself: whatever they allow, the parser of the form finds."""

import json
import random

import jsonschema
import llguidance
import llguidance.numpy
import pytest

from tests.engine.test_tool_parsers import parse
from xlaserve.engine.tool_parsers.grammar import call_grammar, constrained_form
from xlaserve.errors import InvalidRequest

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = {"get_weather": CITY, "f": None, "g-2": {"properties": {"x": {"enum": ["a", None]}}, "required": ["x"]}}
FORMS = [("hermes", ""), ("llama3_json", ""), ("mistral", ""), ("mistral", "[ARGS]")]
BYTES = llguidance.LLTokenizer("byte")


def matcher(parser: str, template: str = "", functions=FUNCTIONS, **options) -> llguidance.LLMatcher:
    options = {"must_call": True, "parallel": True, "special_id": lambda text: None} | options
    made = llguidance.LLMatcher(BYTES, call_grammar(parser, template, functions, **options), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(made: llguidance.LLMatcher, text: str) -> bool:
    return made.try_consume_tokens(list(text.encode())) == len(text.encode()) and made.is_accepting()


def random_text(rng: random.Random, made: llguidance.LLMatcher, most: int = 400) -> str | None:
    """Printable bytes that the grammar allows, to an end of its; None if it comes to none in time."""
    text = ""
    while len(text) < most:
        if made.is_accepting() and (made.is_stopped() or rng.random() < 0.1):
            return text
        mask = llguidance.numpy.allocate_token_bitmask(1, BYTES.vocab_size)
        llguidance.numpy.fill_next_token_bitmask(made, mask)
        allowed = [i for i in range(32, 127) if mask[0, i // 32] >> (i % 32) & 1] or [10]
        closing = [i for i in allowed if chr(i) in '"}]' and rng.random() < 0.3]
        text += chr(rng.choice(closing or allowed))
        assert made.consume_token(ord(text[-1])), text
    return None


@pytest.mark.parametrize(("parser", "template"), FORMS)
@pytest.mark.parametrize("parallel", [True, False])
def test_whatever_must_be_calls_is_found_to_be(parser, template, parallel):
    rng = random.Random(0)
    made = matcher(parser, template, parallel=parallel)
    counts = set()
    for _ in range(60):
        text = random_text(rng, made.deep_copy())
        if text is None:
            continue
        parsed = parse(parser, [text])
        assert parsed.num_whole == len(parsed.calls) > 0, text
        assert parsed.content == "", text
        counts.add(len(parsed.calls))
        for name, arguments in parsed.calls:
            jsonschema.validate(json.loads(arguments), FUNCTIONS[name] or {"type": "object", "maxProperties": 0})
    assert 1 in counts
    assert (max(counts) > 1) is parallel


@pytest.mark.parametrize(
    ("parser", "template", "text"),
    [
        ("hermes", "", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("llama3_json", "", '{"name": "f", "parameters": {}}; {"name": "g-2", "parameters": {"x": null}}'),
        ("mistral", "", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]'),
        ("mistral", "[ARGS]", '[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 3}'),
    ],
)
def test_calls_are_allowed_as_models_write_them(parser, template, text):
    assert accepts(matcher(parser, template), text)
    assert accepts(matcher(parser, template, must_call=False), text)
    assert not accepts(matcher(parser, template), "text")
    assert accepts(matcher(parser, template, must_call=False), "text")
    wrong = text.replace("f", "h").replace("get_weather", "set_weather").replace("g-2", "g-3")
    assert not accepts(matcher(parser, template), wrong)
    assert not accepts(matcher(parser, template, must_call=False), wrong)


@pytest.mark.parametrize(("parser", "template"), FORMS)
def test_one_function_alone(parser, template):
    rng = random.Random(1)
    made = matcher(parser, template, {"get_weather": CITY}, parallel=False)
    texts = [text for _ in range(20) if (text := random_text(rng, made.deep_copy())) is not None]
    assert texts
    for text in texts:
        ((name, _),) = parse(parser, [text]).calls
        assert name == "get_weather"


def test_text_around_calls_is_free_unless_they_must_be():
    text = 'Now: <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nDone {"name": 1}'
    assert accepts(matcher("hermes", must_call=False), text)
    assert not accepts(matcher("hermes"), text)
    assert accepts(matcher("llama3_json", must_call=False), 'It is {"name": "h"}')
    assert not accepts(matcher("llama3_json", must_call=False), ' {"name": "h"}')


def test_marks_that_are_special_tokens_are_named_by_id():
    ids = {"[TOOL_CALLS]": 258, "[ARGS]": 259}
    must = call_grammar("mistral", "[ARGS]", FUNCTIONS, must_call=True, parallel=True, special_id=ids.get)
    assert "<[258]>" in must
    assert "<[259]>" in must
    for grammar in (
        must, call_grammar("mistral", "[ARGS]", FUNCTIONS, must_call=False, parallel=True, special_id=ids.get)
    ):  # fmt: skip
        made = llguidance.LLMatcher(BYTES, grammar, log_level=0)
        assert not made.is_error(), made.get_error()


def test_arguments_must_be_an_object():
    with pytest.raises(InvalidRequest, match="parameters of f") as caught:
        matcher("hermes", functions={"f": {"type": "string"}})
    assert caught.value.param == "tools"


def test_pythonic_calls_that_must_be_made_are_made_in_json():
    assert constrained_form("pythonic") == "llama3_json"
    assert constrained_form("hermes") == "hermes"
