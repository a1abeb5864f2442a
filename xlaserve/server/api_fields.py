"""What the OpenAPI document tells of the fields of an object, in words: for docs/api.md and for the page /docs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xlaserve.server.protocol.batch import UNSUPPORTED as BATCH
from xlaserve.server.responses_api.unsupported import RESPONSES
from xlaserve.server.unsupported import CHAT, COMPLETION, Unsupported

REFUSED: dict[str, dict[str, Unsupported]] = {
    "CompletionRequest": COMPLETION,
    "ChatRequest": CHAT,
    "ResponsesRequest": RESPONSES,
    "BatchRequest": BATCH,
}
COLUMNS = ("field", "type", "range", "default", "origin", "meaning")


@dataclass(frozen=True)
class Writer:
    """How a document shows values, other objects (by the name of their schema), and text, in its own language."""

    code: Callable[[str], str]
    object: Callable[[str], str]
    text: Callable[[str], str]

    def rows(self, schema: dict[str, Any]) -> list[tuple[str, ...]]:
        """A field each, with the COLUMNS. A schema without fields has none."""
        return [
            (
                self.code(name),
                self.type(field),
                self._range(field),
                "required" if name in schema.get("required", ()) else self._default(field),
                {True: "extension", False: "OpenAI"}.get(field.get("x-extension"), ""),
                self.text(field.get("description", "")),
            )
            for name, field in schema.get("properties", {}).items()
        ]

    def type(self, field: dict[str, Any]) -> str:
        if forms := _forms(field):
            return " or ".join(dict.fromkeys(self.type(each) for each in forms))
        if field.get("format") == "binary":
            return "file"
        if "$ref" in field:
            return self.object(ref_name(field))
        if "enum" in field or "const" in field:
            return " or ".join(self.code(json.dumps(each)) for each in field.get("enum", [field.get("const")]))
        if field.get("type") == "array":
            return f"list of {self.type(field.get('items', {}))}"
        return field.get("type", "any")

    def refused(self, fields: dict[str, Unsupported]) -> list[tuple[str, str, str]]:
        """(the field, the values that are taken, what to do instead)."""
        return [
            (self.code(name), ", ".join(self.code(json.dumps(each)) for each in how.neutral), self.text(how.advice))
            for name, how in fields.items()
        ]

    def _default(self, field: dict[str, Any]) -> str:
        value = field.get("default")
        if isinstance(value, dict):
            value = {name: each for name, each in value.items() if each is not None} or None
        return self.text(field.get("x-default", "")) if value is None else self.code(json.dumps(value))

    def _range(self, field: dict[str, Any]) -> str:
        """Of a number, of the length of a text, of how many there are in a list or an object, and of what is in it."""
        found = [self._range(form) for form in _forms(field)]
        if "exclusiveMinimum" in field:
            found.append(f"above {field['exclusiveMinimum']}")
        for least, most, unit in (
            ("minimum", "maximum", ""),
            ("minLength", "maxLength", " characters"),
            ("minItems", "maxItems", " items"),
            ("minProperties", "maxProperties", " items"),
        ):
            found.append(_between(field.get(least), field.get(most), unit))
        if "pattern" in field:
            found.append(self.code(field["pattern"]))
        inside = [field.get(each) for each in ("items", "additionalProperties")]
        found += [f"each {self._range(each)}" for each in inside if isinstance(each, dict) and self._range(each)]
        return "; ".join(dict.fromkeys(each for each in found if each))


def query_schema(operation: dict[str, Any]) -> dict[str, Any] | None:
    """Of what may stand in an operation's URL after the path, as if it were one object; None: nothing may."""
    fields = {each["name"]: each["schema"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    return {"properties": fields} if fields else None


def ref_name(schema: dict[str, Any]) -> str:
    return schema["$ref"].rpartition("/")[2]


def shown(name: str) -> str:
    """Of a schema; pydantic tells a request's from an answer's where both have one of that name."""
    return name.removesuffix("-Input")


def _forms(field: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in field.get("anyOf") or field.get("oneOf") or () if each.get("type") != "null"]


def _between(least: float | None, most: float | None, unit: str) -> str:
    if most is None:
        return "" if least is None else f"{least} or more{unit}"
    return f"at most {most}{unit}" if least is None else f"{least} to {most}{unit}"
