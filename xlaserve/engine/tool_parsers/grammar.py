"""Grammars for the forms of tool calls, in Lark as llguidance has it: what they allow, the parser of the form finds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xlaserve.engine.tool_parsers import hermes, llama3_json, mistral
from xlaserve.errors import InvalidRequest

# There is one way to write a value: white space that may go on is what small models get lost in.
_SPELLING = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
MAX_CALLS = 16  # in an answer that must have one: a model that would rather say something else may find no end of them
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class _Form:
    """Calls come in groups of one or several. A group begins with `trigger`, if there is one."""

    trigger: str
    opening: str
    item: tuple[str, str, str]  # a call: before its name, between name and arguments, after them
    item_separator: str | None  # None: one call in a group
    closing: str
    group_separator: str | None  # None: one group


_FORMS = {
    "hermes": _Form(hermes.BEGIN, "\n", ('{"name": "', '", "arguments": ', "}\n"), None, hermes.END, "\n"),
    "llama3_json": _Form("", "", ('{"name": "', '", "parameters": ', "}"), "; ", "", None),
    "mistral": _Form(mistral.BEGIN, "", ("", mistral.ARGS, ""), None, "", ""),
    "mistral list": _Form(mistral.BEGIN, " [", ('{"name": "', '", "arguments": ', "}"), ", ", "]", None),
}
_MARKS = (hermes.BEGIN, hermes.END, mistral.BEGIN, mistral.ARGS, llama3_json.TAG)


def constrained_form(parser: str) -> str:
    """The parser for answers that must have calls: pythonic ones have no grammar, but Llama knows JSON, too."""
    return "llama3_json" if parser == "pythonic" else parser


def call_grammar(
    parser: str,
    template: str,
    functions: Mapping[str, Mapping[str, Any] | None],
    *,
    must_call: bool,
    parallel: bool,
    special_id: Callable[[str], int | None],
) -> str:
    """For answers that have calls and nothing else, or (not `must_call`) any text in which every call is a right one.

    functions: JSON schemas of arguments by name; None: there are none. parallel: there may be several calls.
    special_id: of a text that is a special token, which the text of a grammar does not match.
    Raises InvalidRequest for a schema that is not an object's. There is no grammar for pythonic calls.
    """
    if parser == "mistral" and mistral.ARGS not in template:
        parser = "mistral list"
    form = _FORMS[parser]

    def spell(text: str) -> str:
        token_id = special_id(text) if text in _MARKS else None
        return json.dumps(text) if token_id is None else f"<[{token_id}]>"

    repeated = form.item_separator is not None and parallel
    more_items = f"({spell(form.item_separator or '')} item){{0,{MAX_CALLS - 1}}}" if repeated else ""
    rules = [
        f"body: {_join(spell(form.opening), 'item', more_items, spell(form.closing))}",
        f"item: {' | '.join(f'item_{number}' for number in range(len(functions)))}",
    ]
    for number, (name, schema) in enumerate(functions.items()):
        before, between, after = form.item
        call = _join(json.dumps(before + name), spell(between), f"arguments_{number}", spell(after))
        rules += [f"item_{number}: {call}", f"arguments_{number}: %json {json.dumps(_arguments(name, schema))}"]
    if must_call:
        group = _join(spell(form.trigger), "body")
        more = f"({_join(spell(form.group_separator or ''), 'group')}){{0,{MAX_CALLS - 1}}}"
        start = _join("group", more if form.group_separator is not None and parallel else "")
        rules = [f"start: {start}", f"group: {group}", *rules]
    elif form.trigger:
        trigger = spell(form.trigger)
        lead = f"lead: TEXT {trigger}" if trigger.startswith("<") else f"lead[lazy]: TEXT {trigger}"
        rules = ["start: (lead body)* rest", lead, "rest: TEXT", r"TEXT: /(.|\n)*/", *rules]
    else:  # an answer that begins with a brace is a call
        tag = spell(llama3_json.TAG)
        rules = [f"start: {tag}? body | OTHER", r"OTHER: /\s*([^\s{](.|\n)*)?/", *rules]
    return "%llguidance {}\n" + "\n".join(rules) + "\n"


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part not in ("", '""'))


def _arguments(name: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    if schema is None:
        return NO_ARGUMENTS | _SPELLING
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"tools: the parameters of {name} must be a JSON schema of type 'object'", param="tools")
    return ANY_ARGUMENTS | dict(schema) | _SPELLING
