"""Turns what was asked for into a grammar of llguidance, and tries whether that compiles. A program of its own.

Some grammars take for ever to compile, or all memory: so this runs in a process that can be killed (`check.py`). For
the same reason it imports nothing of xlaserve.

    python -I -S translate.py BYTES LLGUIDANCE'S_FOLDER

reads {"kind": ..., "text": ..., "limits": ...} and writes {"grammar": ...} or {"error": ...}.
"""

import json
import re
import resource
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Between any two tokens of JSON: nothing, one space, or a line's end and an indentation. Any number of them would let a
# model go on with spaces for ever.
WHITESPACE = "( |\n[ \t]{0,20})"
MAX_DEPTH = 64
MAX_MESSAGE = 300  # characters
MAX_PATH = 100

_ANNOTATIONS = """
    $schema $id id $anchor $comment $vocabulary title description default examples deprecated readOnly writeOnly
    contentEncoding contentMediaType contentSchema discriminator
"""
# That llguidance has, or refuses by name. Others it would ignore.
_KEYWORDS = """
    $ref $defs definitions $dynamicRef $dynamicAnchor $recursiveRef type enum const format
    anyOf oneOf allOf not if then else
    properties required additionalProperties patternProperties propertyNames minProperties maxProperties
    unevaluatedProperties dependentRequired dependentSchemas dependencies
    items prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains unevaluatedItems
    minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern
"""
KNOWN = frozenset((_ANNOTATIONS + _KEYWORDS).split())
_ONE = ("additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


class Refused(Exception):
    """The message is for the client."""


def json_schema(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(
        json.dumps(_checked(_loads(text))), overrides={"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
    )


def _checked(schema: Any) -> Any:
    """The schema. Raises Refused for a keyword that would be ignored."""
    waiting = [(schema, "the schema", 0)]
    while waiting:
        part, where, depth = waiting.pop()
        where = where[-MAX_PATH:]
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise Refused(f"{where} is {_short(part)}: a schema is an object, true or false")
        if depth > MAX_DEPTH:
            raise Refused(f"{where} lies deeper than {MAX_DEPTH} levels")
        for keyword in part:
            if keyword not in KNOWN and not _is_extension(keyword):
                raise Refused(f"{where} has the keyword {_short(keyword)}, which is not supported")
        _check_reference(part, schema, where)
        _check_patterns(part, where)
        waiting += [(inner, name, depth + 1) for inner, name in _inner(part, where)]
    return schema


def _check_reference(part: dict[str, Any], schema: Any, where: str) -> None:
    """One that leads to nothing but references, in a ring, describes nothing."""
    seen = []
    while isinstance(part, dict) and "$ref" in part:
        reference = part["$ref"]
        if not (isinstance(reference, str) and reference.startswith("#")):
            raise Refused(f"{where}: $ref is {_short(reference)}: only what begins with # is looked up")
        if reference in seen:
            raise Refused(f"{where}: $ref is {_short(reference)}, which leads back to itself")
        seen.append(reference)
        part = schema
        for name in reference[1:].split("/")[1:]:
            name = urllib.parse.unquote(name).replace("~1", "/").replace("~0", "~")
            part = part.get(name) if isinstance(part, dict) else None  # pyright: ignore[reportAssignmentType]


def _check_patterns(part: dict[str, Any], where: str) -> None:
    """Where properties list all names that a pattern matches, llguidance begins one more, and has no way on."""
    listed, patterns = part.get("properties"), part.get("patternProperties")
    if part.get("additionalProperties") is not False or not (isinstance(listed, dict) and isinstance(patterns, dict)):
        return
    for pattern in patterns:
        if listed and pattern.startswith("^") and pattern.endswith("$") and not _matches_more(pattern[1:-1], listed):
            raise Refused(
                f"{where}: patternProperties has {_short(pattern)}, which matches only names that properties list: "
                "leave it out, and say in properties what it says of them"
            )


def _matches_more(pattern: str, names: Iterable[str]) -> bool:
    """Whether the pattern, from end to end, matches anything but these names."""
    rest = "|".join("".join(map(_literal, name)) for name in names)
    pattern = re.sub(r"(?<!\\)/", r"\/", pattern)
    return not _try(_lark(f"start: NAME\nNAME: /(?:{pattern})/ & ~/(?:{rest})/"), {})


def _is_extension(keyword: str) -> bool:
    """llguidance reads options from "x-guidance": they are not the client's to set."""
    return keyword.startswith("x-") and keyword != "x-guidance"


def _inner(schema: dict[str, Any], where: str) -> Iterator[tuple[Any, str]]:
    """The schemas within a schema, and how they are called."""
    where = "" if where == "the schema" else f"{where}."
    for keyword in _ONE:
        if keyword in schema and not (keyword == "items" and isinstance(schema[keyword], list)):
            yield schema[keyword], f"{where}{keyword}"
    for keyword in (*_LISTS, "items"):
        if isinstance(schema.get(keyword), list):
            yield from ((inner, f"{where}{keyword}[{n}]") for n, inner in enumerate(schema[keyword]))
    for keyword in _MAPS:
        if isinstance(schema.get(keyword), dict):
            yield from ((inner, f"{where}{keyword}.{name[:40]}") for name, inner in schema[keyword].items())


def regex(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(text)


def choice(text: str) -> str:
    choices = _loads(text)
    if not (isinstance(choices, list) and choices and all(isinstance(each, str) and each for each in choices)):
        raise Refused("must be a list of strings, none of them empty, nor the list")
    return regex("|".join("".join(map(_literal, each)) for each in choices))


def _literal(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"


def grammar(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    return _lark(any_to_lark(text))


def structural_tag(text: str) -> str:
    """Free text in which each trigger begins one of the structures: its `begin`, JSON of its schema, its `end`."""
    from llguidance import StructTag

    asked = _loads(text)
    if not isinstance(asked, dict) or not asked.keys() >= {"structures", "triggers"}:
        raise Refused('must be an object with "structures" and "triggers"')
    triggers, tags = asked["triggers"], []
    if unknown := asked.keys() - {"type", "structures", "triggers"}:
        raise Refused(f"has {_short(min(unknown))}: only structures and triggers are known")
    if not (isinstance(triggers, list) and triggers and all(isinstance(each, str) and each for each in triggers)):
        raise Refused("triggers must be a list of strings, none of them empty, nor the list")
    if not (isinstance(asked["structures"], list) and asked["structures"]):
        raise Refused("structures must be a list, and not empty")
    for number, structure in enumerate(asked["structures"]):
        where = f"structures[{number}]"
        if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
            raise Refused(f"{where} must have begin, schema and end, and nothing else")
        begin, schema, end = structure["begin"], structure["schema"], structure["end"]
        if not (isinstance(begin, str) and isinstance(end, str)):
            raise Refused(f"{where}: begin and end must be strings")
        trigger = next((each for each in triggers if begin.startswith(each)), None)
        if trigger is None:
            raise Refused(f"{where}: begin is {_short(begin)}, which no trigger begins")
        if not isinstance(_checked(schema), dict):
            raise Refused(f"{where}: schema must be an object")
        ruled = schema | {"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}}
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=ruled, end=end))
    return _lark(StructTag.to_grammar(tags, assume_special=False))


def _lark(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(text)


TRANSLATORS: dict[str, Callable[[str], str]] = {
    "json_schema": json_schema,
    "regex": regex,
    "choice": choice,
    "grammar": grammar,
    "structural_tag": structural_tag,
}


def _loads(text: str) -> Any:
    def refuse(name: str) -> None:
        raise Refused(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refused(f"is no JSON: {error}") from error


def _short(value: Any) -> str:
    return repr(value)[:60]


def answer(asked: dict[str, Any]) -> dict[str, str]:
    try:
        translated = TRANSLATORS[asked["kind"]](asked["text"])
        error = _try(translated, asked["limits"])
    except (Refused, ValueError, AssertionError, RecursionError) as problem:
        translated, error = "", str(problem) or type(problem).__name__
    except Exception as problem:  # of GBNF's parser, which raises all kinds
        translated, error = "", f"{type(problem).__name__}: {problem}"
    return {"error": " ".join(error.split())[:MAX_MESSAGE]} if error else {"grammar": translated}


_TOKEN_IDS = re.compile(r"<\[[\d,-]+\]>")


class Bytes:
    """A vocabulary of bytes and an EOS, as llguidance's TokenizerWrapper wants it."""

    tokens = (*(bytes([byte]) for byte in range(255)), b"", b"<eos>")
    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def _try(grammar: str, limits: dict[str, Any]) -> str:
    """What is wrong. Compiles it, to the end: a grammar that is only parsed has not shown yet what it costs."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    grammar = _TOKEN_IDS.sub(f"<[{Bytes.eos_token_id}]>", grammar)  # the ids are of the model's vocabulary
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Bytes())), grammar, log_level=0, limits=LLParserLimits(**limits))
    if not matcher.is_error():
        matcher.compute_bitmask()
        if matcher.is_error():
            return "allows no output at all, or is too complex"
    return matcher.get_error()


def main() -> None:
    memory, *folders = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    sys.path += folders
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
