"""Parsers of tool calls: what they find, and that it does not depend on how the text is cut."""

import json
import random
import time
from typing import NamedTuple

import pytest

from xlaserve.engine.tool_parsers import PARSERS, ToolDelta, parser_for
from xlaserve.engine.tool_parsers.json_scanner import JsonScanner

NAMES = ("f", "get_weather", "g-2")


class Parsed(NamedTuple):
    content: str
    calls: list[tuple[str, str]]
    num_whole: int


def gather(parser, deltas: list[ToolDelta]) -> Parsed:
    calls: list[list[str]] = []
    for delta in (one for each in deltas for one in each.calls):
        assert delta.arguments
        if delta.name is not None:
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    return Parsed("".join(delta.content for delta in deltas), [(n, a) for n, a in calls], parser.num_whole)


def parse(name: str, pieces, **options) -> Parsed:
    parser = PARSERS[name](NAMES, **options)
    return gather(parser, [*(parser.push(piece) for piece in pieces), parser.finish()])


WEATHER = '{"city": "Paris \\"é\\"", "days": [1, -2.5e3, {"a": null}], "x": true}'

CALLS = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", "{}")]),
    ("hermes", f'<tool_call>{{"arguments": {WEATHER}, "name": "get_weather"}}', "", [("get_weather", WEATHER)]),
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n'
        f'<tool_call>\n{{"id": 3, "name": "get_weather", "parameters": {WEATHER}}}\n</tool_call>\nDone.\n',
        "Let me see.\n\n\nDone.",
        [("f", '{"a": "</tool_call>"}'), ("get_weather", WEATHER)],
    ),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ("llama3_json", ' <|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        "llama3_json",
        '{"type": "function", "name": "f", "arguments": {"a": 1}}; {"name": "g-2", "parameters": {"b": []}}',
        "",
        [("f", '{"a": 1}'), ("g-2", '{"b": []}')],
    ),
    ("llama3_json", 'Sure. <|python_tag|>{"name": "f", "parameters": {}}', "Sure.", [("f", "{}")]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", [("f", '{"a": 1}')]),
    (
        "mistral",
        'Hm [TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "123456789"}, '
        f'{{"name": "get_weather", "arguments": {WEATHER}}}]',
        "Hm",
        [("f", "{}"), ("get_weather", WEATHER)],
    ),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', "", [("f", '{"a": 1}')]),
    (
        "mistral",
        f'x[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{WEATHER}[TOOL_CALLS]g-2[ARGS]{{"b": 2}}',
        "x",
        [("get_weather", WEATHER), ("g-2", '{"b": 2}')],
    ),
    ("pythonic", "[f(a=1)]", "", [("f", '{"a": 1}')]),
    ("pythonic", "[f()]", "", [("f", "{}")]),
    (
        "pythonic",
        "<|python_start|>[get_weather(city='Paris, \"é\" (\\'x\\')', days=[1, -2.5, {'a': None}], x=True), "
        "f(b=(1, 2),)]<|python_end|>",
        "",
        [
            ("get_weather", '{"city": "Paris, \\"é\\" (\'x\')", "days": [1, -2.5, {"a": null}], "x": true}'),
            ("f", '{"b": [1, 2]}'),
        ],
    ),
    ("pythonic", "[f(a='\\d\\n')]", "", [("f", '{"a": "\\\\d\\n"}')]),
]

NO_CALLS = [
    ("hermes", "just text \n"),
    ("hermes", "a < b, <tool and <tool_cal"),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call>\n{'name': 'f'}\n</tool_call>"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "a"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f",}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {'),
    ("hermes", '<tool_call>{"arguments": {"a": 1'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}'),
    ("llama3_json", ' {"answer": 42}\n'),
    ("llama3_json", 'The call is {"name": "f", "parameters": {"a": 1}}'),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", "[TOOL_CALLS]h[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]f[ARGS]no"),
    ("mistral", '[{"name": "f", "arguments": {"a": 1}}]'),
    ("pythonic", "[1, 2, 3]"),
    ("pythonic", "[h(a=1)]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(a=open('x'))]"),
    ("pythonic", "[f(a=1j)]"),
    ("pythonic", "[f(a=)]"),
    ("pythonic", "[f(a={'b')]"),
    ("pythonic", "[f(a='b"),
    ("pythonic", "f(a=1)"),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS, ids=[f"{c[0]}-{i}" for i, c in enumerate(CALLS)])
def test_calls_are_found(name, text, content, calls):
    assert parse(name, [text]) == Parsed(content, calls, len(calls))
    for _, arguments in calls:
        json.loads(arguments)


@pytest.mark.parametrize(("name", "text"), NO_CALLS, ids=str)
def test_what_is_no_call_is_content_in_the_end(name, text):
    assert parse(name, [text]) == Parsed(text, [], 0)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call>',
            Parsed("x}}</tool_call>", [("f", '{"a": ')], 0),
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', Parsed("", [("f", '{"a": "b')], 0)),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1.}', Parsed("}", [("f", '{"a": 1.')], 0)),
        ("pythonic", "[f(a=1, 2)]", Parsed(")]", [("f", '{"a": 1')], 0)),
    ],
)
def test_a_call_that_was_announced_and_breaks_off_stays_one_but_is_not_whole(name, text, expected):
    parsed = parse(name, [text])
    assert parsed.calls == expected.calls
    assert parsed.num_whole == 0
    assert parse(name, text) == parsed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>oops</tool_call>'),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}; oops'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, oops]'),
        ("pythonic", "[f(a=1), oops(b=2)]"),
    ],
)
def test_what_is_no_call_after_one_is_content(name, text):
    parsed = parse(name, [text])
    assert parsed.calls == [("f", '{"a": 1}')]
    assert parsed.num_whole == 1
    assert "oops" in parsed.content


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS, ids=[f"{c[0]}-{i}" for i, c in enumerate(CALLS)])
def test_calls_beyond_the_limit_are_left_out(name, text, content, calls):
    assert parse(name, [text], max_calls=1) == Parsed(content, calls[:1], 1)


def cuts(rng: random.Random, text: str) -> list[str]:
    at = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(1 + len(text))))
    return [text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)]


def damaged(rng: random.Random, text: str) -> str:
    """Something left out, doubled or put elsewhere, several times perhaps."""
    for _ in range(rng.randrange(3)):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = rng.choice([text[:i] + text[j:], text[:j] + text[i:], text[j:] + text[:i], text[i:j] or text])
    return text


@pytest.mark.parametrize("name", PARSERS)
def test_the_cuts_make_no_difference(name):
    rng = random.Random(name)
    texts = [text for parser, text, *_ in [*CALLS, *NO_CALLS] if parser == name]
    num_calls = 0
    for _ in range(600):
        text = "".join(damaged(rng, rng.choice(texts)) for _ in range(rng.randrange(1, 4)))
        whole = parse(name, [text])
        assert parse(name, cuts(rng, text)) == whole, text
        num_calls += len(whole.calls)
    assert num_calls > 100


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS, ids=[f"{c[0]}-{i}" for i, c in enumerate(CALLS)])
def test_a_character_at_a_time(name, text, content, calls):
    assert parse(name, text) == Parsed(content, calls, len(calls))


@pytest.mark.parametrize("length", range(len("\n</tool_call>") + 1))
def test_nothing_of_an_end_mark_that_is_cut_is_content(length):
    """As where max_tokens has come."""
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}' + "\n</tool_call>"[:length]
    assert parse("hermes", text) == parse("hermes", [text])
    found = parse("hermes", [text])
    assert (found.content.strip(), found.calls, found.num_whole) == ("", [("f", '{"a": 1}')], 1)


def test_arguments_are_given_as_they_come():
    parser = PARSERS["hermes"](NAMES)
    assert parser.push('<tool_call>{"name": "f", "arguments": {') == ToolDelta()
    (first,) = parser.push('"text": "on').calls
    assert (first.name, first.arguments) == ("f", '{"text": "on')
    (second,) = parser.push("ce upon").calls
    assert (second.index, second.name, second.arguments) == (0, None, "ce upon")


@pytest.mark.parametrize("name", PARSERS)
def test_the_cost_of_a_piece_does_not_grow(name):
    """Ten times the text takes about ten times as long, not a hundred times."""
    begin, end = {
        "hermes": ('<tool_call>{"name": "f", "arguments": {"a": "', '"}}</tool_call>'),
        "llama3_json": ('{"name": "f", "parameters": {"a": "', '"}}'),
        "mistral": ('[TOOL_CALLS]f[ARGS]{"a": "', '"}'),
        "pythonic": ("[f(a='", "')]"),
    }[name]

    def seconds(length: int) -> float:
        start = time.process_time()
        parsed = parse(name, [begin, *["abc "] * length, end])
        assert parsed.num_whole == 1
        return time.process_time() - start

    short, long = (min(seconds(length) for _ in range(3)) for length in (1_000, 20_000))
    assert long < 8 * 20 * short  # a cost that grows makes it 400 times as long


JSON_TEXTS = [
    '{"a": [1, -0.5, 2E+3, true, false, null, "x\\u00e9\\n"], "b": {}, "c": []}',
    "[]",
    '"x"',
    "[[1], {}]",
    "{}",
]


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_the_scanner_agrees_with_python(text):
    """On JSON, on everything that JSON begins with, and on JSON with one character changed."""
    rng = random.Random(text)
    for _ in range(400):
        i = rng.randrange(len(text))
        changed = text[:i] + rng.choice('{}[]",:0 1-.eEtrue\\u\n') + text[i + rng.randrange(2) :]
        scanner = JsonScanner()
        end = scanner.feed(changed, 0)
        try:
            json.JSONDecoder().raw_decode(changed.lstrip(" \t\n\r"))
            is_json = True
        except ValueError:
            is_json = False
        assert scanner.is_done == is_json, changed
        assert scanner.is_done or scanner.is_broken or end == len(changed)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("...<tool_call>\n{'name': ...", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{% if builtin_tools %}<|python_tag|>{% endif %}", "llama3_json"),
        ("[func_name1(params_name1=params_value1...)]", "pythonic"),
        ("<tool_call>\n<function=f>", None),
        ("{{ tools | tojson }}", None),
    ],
)
def test_the_template_tells_the_parser(template, name):
    assert parser_for(template) == name
