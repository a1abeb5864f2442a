"""Grammars: what their masks allow, against what Python itself says of the text; what is refused, and how soon."""

import json
import random
import re
import time
from collections import Counter
from itertools import product
from unittest import mock

import jsonschema
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from tests.toys import byte_level_tokenizer, byte_tokenizer, sentencepiece_tokenizer
from xlaserve.core.constraint import ConstraintFailed
from xlaserve.engine import child
from xlaserve.engine.grammar import check, translate
from xlaserve.engine.grammar.compiler import GrammarCompiler
from xlaserve.engine.grammar.constraint import make_mask
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.errors import InvalidRequest, Overloaded
from xlaserve.grammar import MAX_GRAMMAR_BYTES, Grammar

MORE_IDS = 37  # the model's vocabulary is padded
TOKENIZERS = {
    "byte level": byte_level_tokenizer(),
    "SentencePiece": sentencepiece_tokenizer(),
    "SentencePiece without a prefix": sentencepiece_tokenizer(space_prefix=False),
}
COMPILERS = {name: GrammarCompiler(each, each.vocab_size + MORE_IDS, each.eos_ids) for name, each in TOKENIZERS.items()}
EVERY_TOKENIZER = pytest.mark.parametrize("name", TOKENIZERS)


def schema(value, **options) -> Grammar:
    return Grammar("json_schema", value if isinstance(value, str) else json.dumps(value), **options)


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def walk(tokenizer: Tokenizer, constraint, seed: int, max_tokens: int = 400) -> bytes | None:
    """Takes any allowed token until EOS; None when that does not come."""
    rng, text = random.Random(seed), b""
    for _ in range(max_tokens):
        ids = allowed(constraint.mask())
        assert ids
        assert max(ids) < tokenizer.vocab_size, "padding is never allowed"
        token = rng.choice(ids)
        if token in tokenizer.eos_ids:
            return text
        assert token not in tokenizer.special_ids
        text += tokenizer.token_bytes(token)
        constraint.advance(token)
    return None


PATTERNS = {"a{1,3}b?": "ab", "(ab|ba){1,2}": "ab", "Hello": "Helo", "(a|He|Hel)(l|lo)?": "aHelo"}  # and their letters
MEMBERS = {
    pattern: [
        text for n in range(6) for text in map("".join, product(letters, repeat=n)) if re.fullmatch(pattern, text)
    ]
    for pattern, letters in PATTERNS.items()
}


def can_begin(pattern: str, text: str) -> bool:
    """Whether some match of the pattern begins with `text`: none is longer than 5."""
    return any(member.startswith(text) for member in MEMBERS[pattern])


@EVERY_TOKENIZER
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_allow_just_what_some_match_begins_with(name, pattern):
    """All texts that lead anywhere are followed. Where only one text can follow, its own tokens are enough."""
    tokenizer = TOKENIZERS[name]
    spelled = {i: tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
    waiting, seen = [("", COMPILERS[name].constraint(Grammar("regex", pattern)))], set()
    while waiting:
        text, state = waiting.pop()
        found = set(allowed(state.mask()))
        is_complete = re.fullmatch(pattern, text) is not None
        expected = {
            i for i, each in spelled.items() if each and each.isascii() and can_begin(pattern, text + each.decode())
        }
        forced = len({member[len(text)] for member in MEMBERS[pattern] if member.startswith(text) and member != text})
        assert bool(found & tokenizer.eos_ids) == is_complete
        assert found - tokenizer.eos_ids <= expected
        if forced != 1 or is_complete:
            assert found - tokenizer.eos_ids == expected
        assert found
        for token in sorted(found - tokenizer.eos_ids):
            longer = text + spelled[token].decode()
            if longer not in seen:
                seen.add(longer)
                state_then = state.copy()
                state_then.advance(token)
                waiting.append((longer, state_then))
    assert {text for text in seen if re.fullmatch(pattern, text)} == set(MEMBERS[pattern])


@EVERY_TOKENIZER
def test_choices_are_written_as_they_are(name):
    choices = [
        '"quoted"',
        "back\\slash",
        "new\nline",
        "é日🌶",
        "\x00\x7f",
        "a/b",
        "\b\f\t",
        "{}",
        "Hello world",
        "Hello",
    ]
    grammar = Grammar("choice", json.dumps(choices))
    texts = {walk(TOKENIZERS[name], COMPILERS[name].constraint(grammar), seed) for seed in range(150)}
    assert {text.decode() for text in texts if text is not None} == set(choices)


@EVERY_TOKENIZER
def test_json_is_valid_and_its_whitespace_is_bounded(name):
    asked = {
        "type": "object",
        "properties": {"the": {"type": "integer"}, "b": {"const": "日🌶"}, "c": {"type": "array", "maxItems": 3}},
        "required": ["the", "b"],
        "additionalProperties": False,
    }
    texts = [walk(TOKENIZERS[name], COMPILERS[name].constraint(schema(asked)), seed) for seed in range(40)]
    done = [text.decode() for text in texts if text is not None]
    assert len(done) > 20
    for text in done:
        value = json.loads(text)
        assert set(value) <= {"the", "b", "c"}
        assert (value["b"], type(value["the"])) == ("日🌶", int)
        assert all(len(spaces) <= 21 for spaces in re.findall(r"\s+", text))


@pytest.mark.parametrize("text", ['start: "yes" | /no[0-9]{2}/', 'root ::= "yes" | "no" [0-9] [0-9]'])
def test_grammars_of_lark_and_gbnf(text):
    tokenizer, compiler = TOKENIZERS["byte level"], COMPILERS["byte level"]
    texts = {walk(tokenizer, compiler.constraint(Grammar("grammar", text)), seed) for seed in range(30)}
    assert all(re.fullmatch(rb"yes|no\d\d", found) for found in texts)
    assert b"yes" in texts
    assert len(texts) > 2


def test_structural_tags_rule_what_follows_a_trigger():
    tokenizer, compiler = TOKENIZERS["byte level"], COMPILERS["byte level"]
    properties = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    structure = {"begin": "<f>", "schema": properties | {"additionalProperties": False}, "end": "</f>"}
    constraint = compiler.constraint(
        Grammar("structural_tag", json.dumps({"structures": [structure], "triggers": ["<f"]}))
    )
    free = set(allowed(constraint.mask()))
    assert len(free) > 150, "any text"
    for token in b'some text <f>{"n":':
        assert token in allowed(constraint.mask())
        constraint.advance(token)
    assert {chr(token) for token in allowed(constraint.mask())} <= set("-0123456789 \n")
    for token in b"12}</f>, and":
        assert token in allowed(constraint.mask())
        constraint.advance(token)
    assert tokenizer.eos_ids <= set(allowed(constraint.mask()))


def test_eos_is_put_off_where_it_is_ignored():
    compiler, (eos,) = COMPILERS["byte level"], TOKENIZERS["byte level"].eos_ids
    for more in (False, True):
        constraint = compiler.constraint(Grammar("regex", "a{1,3}"), more=more)
        ends = []
        for _ in range(3):
            constraint.advance(ord("a"))
            ends.append(eos in allowed(constraint.mask()))
        assert ends == [not more, not more, True]
        assert allowed(constraint.mask()) == [eos]


def test_a_token_that_is_not_allowed_ends_the_request_with_its_reason():
    constraint = COMPILERS["byte level"].constraint(Grammar("regex", "ab"))
    constraint.advance(ord("x"))
    with pytest.raises(ConstraintFailed, match="does not keep to its grammar"):
        constraint.mask()


def test_copies_go_on_apart():
    constraint = COMPILERS["byte level"].constraint(Grammar("regex", "(ab|ba)"))
    constraint.advance(ord("a"))
    twin = constraint.copy()
    constraint.advance(ord("b"))
    assert allowed(twin.mask()) == [ord("b")]
    assert allowed(constraint.mask()) == sorted(TOKENIZERS["byte level"].eos_ids)


@EVERY_TOKENIZER
@pytest.mark.parametrize("seed", range(3))
def test_masks_made_ahead_are_those_made_token_by_token(name, seed):
    """Where the grammar goes on in one way only, its constraint is ahead of the tokens that have come."""
    names = {each: {"type": "integer", "maximum": 99, "minimum": 0} for each in ("Hello world", "a the fox", "日🌶")}
    asked = schema({"type": "object", "properties": names, "required": [*names], "additionalProperties": False})
    constraint, tokens = COMPILERS[name].constraint(asked), COMPILERS[name]._tokens()
    plain = LLMatcher(tokens, check.translate(asked), limits=LLParserLimits(**check.LIMITS))
    num_words, rng, num_ahead = -(-(TOKENIZERS[name].vocab_size + MORE_IDS) // 32), random.Random(seed), 0
    for _ in range(200):
        mask = constraint.mask()
        assert allowed(mask) == allowed(make_mask(plain, num_words, mask)), "of one that is complete: EOS only"
        token = rng.choice(allowed(mask))
        if token in TOKENIZERS[name].eos_ids:
            break
        num_ahead += len(constraint._known()) > 1
        constraint.advance(token)
        constraint = rng.choice([constraint, constraint.copy()])
        assert plain.consume_token(token)
    assert num_ahead > 10


def in_this_process(grammar: Grammar) -> str:
    found = translate.answer({"kind": grammar.kind, "text": grammar.text, "limits": check.LIMITS})
    if "error" in found:
        raise child.Refused(found["error"])
    return found["grammar"]


counts = st.sampled_from([None, None, None, 0, 1, 2])
values = st.sampled_from(
    [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 9}, {"minimum": 5}, {}, False]
)
names = st.sampled_from(["a", "b", "ab", "ba"])
patterns = st.sampled_from(["^a$", "^a", "b$", "^(a|b)$", "^[ab]{1,2}$", "^a/$"])


@settings(max_examples=60, phases=[Phase.generate], deadline=None, derandomize=True, database=None)
@given(
    listed=st.dictionaries(names, values, max_size=3),
    ruled=st.dictionaries(patterns, values, max_size=2),
    others=st.sampled_from([None, False, {"type": "null"}]),
    least=counts,
    most=counts,
    required=st.lists(names, max_size=1),
)
def keep_to_or_refuse(walks, listed, ruled, others, least, most, required):
    fields = {"additionalProperties": others, "minProperties": least, "maxProperties": most, "required": required}
    asked = {"type": "object", "properties": listed, "patternProperties": ruled}
    asked |= {name: value for name, value in fields.items() if value is not None}
    tokenizer, compiler = TOKENIZERS["byte level"], COMPILERS["byte level"]
    try:
        with mock.patch("xlaserve.engine.grammar.compiler.translate", in_this_process):
            constraint, refusal = compiler.constraint(schema(asked)), ""
    except InvalidRequest as error:
        constraint, refusal = None, str(error)
    walks["refused"] += constraint is None
    assert constraint or re.search(r"[pP]ropert|allows nothing|no output", refusal), refusal
    for seed in range(6 if constraint else 0):
        text = walk(tokenizer, constraint.copy(), seed, 100)
        if text is not None:
            walks["done"] += 1
            jsonschema.validate(json.loads(text), asked, cls=jsonschema.Draft202012Validator)


def test_names_and_patterns_and_numbers_of_properties():
    """Where they meet, a schema is kept to or refused by name."""
    walks = Counter()
    keep_to_or_refuse(walks)
    assert walks["done"] > 60
    assert 0 < walks["refused"] < 50


REFUSED = {
    '{"properties": {"foo": "bar"}}': "properties.foo",
    '{"type": "object", "foo": 1}': "keyword 'foo'",
    '{"properties": {"a": {"items": {"nullable": true}}}}': "properties.a.items has the keyword 'nullable'",
    '{"$ref": "#"}': r"\$ref",
    '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}': r"\$ref",
    '{"$ref": "http://elsewhere/schema"}': r"\$ref",
    '{"$ref": "#/$defs/missing"}': "missing",
    '{"enum": []}': "anyOf|enum",
    '{"type": "string", "format": "blah"}': "format: blah",
    '{"type": "string", "pattern": "(?=a)b"}': "look-ahead",
    '{"not": {}}': "not",
    '{"type": "foo"}': "type: foo",
    '{"x-guidance": {"whitespace_flexible": true}}': "x-guidance",
    '{"minimum": NaN}': "NaN",
    "[": "no JSON",
    "[" * 100_000: "no JSON",
    '{"items":' * 100 + "{}" + "}" * 100: "deeper than",
    "3": "a schema is an object",
    '{"items": {"properties": {"a": {}}, "patternProperties": {"^a$": {}}, "additionalProperties": false}}': "s: patt",
    '{"properties": {"a/": {}, "é": {}}, "patternProperties": {"^(a/|é)$": {}}, "additionalProperties": false}': "a/|é",
    '{"properties": {"a": {}, "b": {}}, "minProperties": 1}': "minProperties|min/maxProperties",
    '{"patternProperties": {"^a": {}, "b$": {}}, "additionalProperties": false}': "not disjoint",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_report_82_bad_schemas_are_named(text):
    with pytest.raises(InvalidRequest, match=REFUSED[text]) as caught:
        COMPILERS["byte level"].constraint(schema(text, param="response_format"))
    assert caught.value.param == "response_format"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("regex", "(", "unclosed group"),
        ("choice", "[]", "list of strings"),
        ("choice", '["a", 3]', "list of strings"),
        ("grammar", "hello", "::="),
        ("grammar", "start: start", "no output"),
        ("structural_tag", "{}", "triggers"),
        (
            "structural_tag",
            '{"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": ["y"]}',
            "no trigger",
        ),
    ],
)
def test_bad_grammars_are_told_what_is_wrong(kind, text, told):
    with pytest.raises(InvalidRequest, match=told):
        COMPILERS["byte level"].constraint(Grammar(kind, text))


def test_report_82_a_grammar_that_compiles_for_ever_is_given_up_and_remembered(monkeypatch):
    compiler, endless = COMPILERS["byte level"], schema({"type": "integer", "multipleOf": 9999991})
    monkeypatch.setattr(check.translate, "__kwdefaults__", {"seconds": 0.7})
    start = time.monotonic()
    with pytest.raises(InvalidRequest, match="takes longer than"):
        compiler.constraint(endless)
    assert time.monotonic() - start < 30
    start = time.monotonic()
    with pytest.raises(InvalidRequest, match="takes longer than"):
        compiler.constraint(endless)
    assert time.monotonic() - start < 0.7


def test_no_turn_to_compile_is_told_as_overload(monkeypatch):
    monkeypatch.setattr(child, "MAX_WAIT", 0.05)
    for _ in range(check.MAX_CHECKS):
        check._child._turns.acquire()
    try:
        with pytest.raises(Overloaded):
            COMPILERS["byte level"].constraint(Grammar("regex", "never seen before"))
    finally:
        for _ in range(check.MAX_CHECKS):
            check._child._turns.release()


def test_report_82_size_is_limited():
    with pytest.raises(InvalidRequest, match="bytes") as caught:
        schema({"enum": ["x" * MAX_GRAMMAR_BYTES]}, param="guided_json")
    assert caught.value.param == "guided_json"
    for text in ("", "\ud800"):
        with pytest.raises(InvalidRequest):
            Grammar("regex", text)


def test_a_grammar_is_compiled_once_whoever_asks(monkeypatch):
    tokenizer = TOKENIZERS["byte level"]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    calls = []
    monkeypatch.setattr("xlaserve.engine.grammar.compiler.translate", lambda each: calls.append(each) or "start: /a/")
    monkeypatch.setattr("xlaserve.engine.grammar.compiler.MAX_CACHED", 2)
    for text in ("1", "2", "1", "3", "1", "2"):
        compiler.constraint(Grammar("regex", text, param=f"field {len(calls)}"))
    assert [each.text for each in calls] == ["1", "2", "3", "2"]


def test_a_model_without_eos_cannot_end_a_grammar():
    tokenizer = byte_tokenizer()
    with pytest.raises(InvalidRequest, match="ends an output"):
        GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset()).constraint(Grammar("regex", "a"))
