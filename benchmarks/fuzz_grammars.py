"""Random values of the fields that say what an output must look like: schemas, regexes, tools; many of them odd."""

import json
import random
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 3  # of a schema
_NAMES = ["a", "the b", "é", '"', "", "$ref", "a.b/c~d"]
_PATTERNS = [
    "^[ab]{1,4}$",
    "a+",
    "(a|b)*c",
    "\\d{3}",
    "[^x]",
    "(",
    "a{1000000}",
    "(?=a)b",
    "\\p{L}+",
    ".*",
    "",
    "(a*)*b",
]
_FORMATS = ["date", "uuid", "email", "uri", "no-such-format"]
_KEYWORDS: list[tuple[str, list[Any]]] = [
    ("minLength", [0, 3, -1, 10**9]), ("maxLength", [0, 5, "5"]), ("pattern", _PATTERNS), ("format", _FORMATS),
    ("minimum", [0, -5, 1e300]), ("maximum", [10, -9]), ("exclusiveMaximum", [3, True]), ("multipleOf", [7, 0, 0.1]),
    ("minItems", [0, 2, 10**6]), ("maxItems", [3, 0]), ("uniqueItems", [True]), ("required", [["a"], ["zz"], "a", []]),
    ("additionalProperties", [False, True, {"type": "null"}, 5]), ("enum", [[], [1, "x", None], [{}]]),
    ("const", ["x", None, {"a": [1]}]), ("patternProperties", [{"^x": {}}]), ("not", [{}]), ("if", [{}]),
    ("foo", ["bar"]), ("$ref", ["#", "#/$defs/none", "http://example.com/x"]), ("items", [{}, False, 3]),
]  # fmt: skip
_EBNF = [
    'root ::= "a" [bc]+',
    "root ::= root",
    "root ::= ",
    'root ::= "x" | rest\nrest ::= "y" root',
    "::=",
    "x" * 2000,
]
_LARK = ['start: "a" /[bc]{2}/', "start: start", "start: %json {}", 'start: A\nA: "x"+', "%ignore /x/", "start: /(/"]


class Grammars:
    """Draws from `random` alone."""

    def __init__(self, random: random.Random):
        self._random = random
        self.by_field: dict[str, Callable[[], Any]] = {
            "response_format": self._response_format,
            "text": lambda: {"format": self._text_format()},
            "structured_outputs": self._structured_outputs,
            "guided_json": self.schema,
            "guided_regex": self._regex,
            "guided_choice": self._choice,
            "guided_grammar": self._grammar,
        }

    def schema(self, depth: int = 0) -> Any:
        """Nearly always one; of every tenth some keyword is odd or unknown."""
        pick = self._random.choice
        schema: dict[str, Any] = {"type": pick(["object", "array", "string", "integer", "number", "boolean", "null"])}
        if depth < MAX_DEPTH and schema["type"] == "object":
            names = self._random.sample(_NAMES, self._random.choice([0, 1, 1, 2, 3]))
            schema["properties"] = {name: self.schema(depth + 1) for name in names}
            schema["required"] = [name for name in names if self._random.random() < 0.5]
        elif depth < MAX_DEPTH and schema["type"] == "array":
            schema |= {"items": self.schema(depth + 1), "maxItems": pick([0, 1, 3])}
        elif depth < MAX_DEPTH and self._random.random() < 0.15:
            schema = {"anyOf": [self.schema(depth + 1) for _ in range(pick([0, 1, 2, 3]))]}
        if self._random.random() < 0.1:
            keyword, values = pick(_KEYWORDS)
            schema[keyword] = pick(values)
        if depth == 0 and self._random.random() < 0.1:
            return {"$defs": {"d": schema}, "$ref": "#/$defs/d"}
        return schema

    def tools(self) -> dict[str, Any]:
        """The fields that belong together, of chat completions."""
        pick = self._random.choice
        functions = [
            {
                "name": name,
                "parameters": {"type": "object", "properties": {"a": self.schema(2)}},
                "strict": pick([True, False]),
            }
            for name in self._random.sample(["look", "see", "go"], pick([1, 2, 3]))
        ]
        named = {"type": "function", "function": {"name": pick(["look", "see", "none"])}}
        fields = {"tools": [{"type": "function", "function": function} for function in functions]}
        fields |= {
            "tool_choice": pick(["none", "auto", "required", "required", named, None]),
            "max_tokens": pick([4, 60]),
        }
        return fields | ({"parallel_tool_calls": pick([True, False])} if self._random.random() < 0.3 else {})

    def _structured_outputs(self) -> dict[str, Any]:
        kinds = {
            "json": self.schema, "regex": self._regex, "choice": self._choice, "grammar": self._grammar,
            "json_object": lambda: True, "structural_tag": self._tags,
        }  # fmt: skip
        chosen = self._random.sample(sorted(kinds), self._random.choice([1] * 9 + [2]))
        return {name: kinds[name]() for name in chosen}

    def _response_format(self) -> dict[str, Any]:
        kind = self._random.choice(["text", "json_object", "json_schema", "json_schema", "structural_tag"])
        more = {"json_schema": {"name": "x", "schema": self.schema()}} if kind == "json_schema" else {}
        return {"type": kind} | (self._tags() if kind == "structural_tag" else more)

    def _text_format(self) -> dict[str, Any]:
        kind = self._random.choice(["text", "json_object", "json_schema"])
        return {"type": kind} | ({"name": "x", "schema": self.schema()} if kind == "json_schema" else {})

    def _tags(self) -> dict[str, Any]:
        tag = {"begin": self._random.choice(["<f>", "a", ""]), "schema": self.schema(1), "end": "</f>"}
        return {"structures": [tag], "triggers": [self._random.choice(["<f>", "<", "x", ""])]}

    def _regex(self) -> str:
        return self._random.choice(_PATTERNS)

    def _choice(self) -> list[str]:
        return self._random.choice([["yes", "no"], ["a"], [""], [], ["x" * 5000], ["日", "日本"], [json.dumps("\x00")]])

    def _grammar(self) -> str:
        return self._random.choice(_EBNF + _LARK)
