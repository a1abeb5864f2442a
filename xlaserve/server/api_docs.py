"""docs/api.md from the OpenAPI document: `python -m xlaserve.server.api_docs > docs/api.md`."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from xlaserve.server.openapi import document
from xlaserve.server.protocol.batch import UNSUPPORTED as BATCH
from xlaserve.server.responses_api.unsupported import RESPONSES
from xlaserve.server.unsupported import CHAT, COMPLETION, Unsupported

_HEAD = """# The HTTP API

Made from the server's own models (`python -m xlaserve.server.api_docs > docs/api.md`); `/openapi.json` is the same for
programs. A field that is not listed is refused with a 400 that names it, as is a value out of its range. `null` is the
same as leaving the field out. Every error is `{"error": {"message", "type", "param", "code"}}`. The EOS token counts in
`completion_tokens` and is not part of the text.
"""
_REFUSED = {"CompletionRequest": COMPLETION, "ChatRequest": CHAT, "ResponsesRequest": RESPONSES, "BatchRequest": BATCH}


def markdown() -> str:
    found = document()
    schemas = found["components"]["schemas"]
    lines = [_HEAD, "| | |", "|---|---|"]
    bodies: dict[str, str] = {}  # the titles of models
    queries: dict[str, list[dict[str, Any]]] = {}
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            title = f"{method.upper()} {path}"
            lines.append(f"| `{title}` | {operation['summary']} |")
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                bodies[_name(content["schema"]["$ref"])] = title
            if query := [each for each in operation.get("parameters", ()) if each["in"] == "query"]:
                queries[title] = query
    for name, title in bodies.items():
        lines += ["", f"## {title}", "", *_fields(schemas[name])]
        if name in _REFUSED:
            lines += ["", "Refused, but for the values named:", ""]
            lines += [_refused(field, how) for field, how in _REFUSED[name].items()]
    for title, query in queries.items():
        schema = {"properties": {each["name"]: each["schema"] for each in query}}
        lines += ["", f"## {title}", "", "In the URL:", "", *_fields(schema)]
    lines += ["", "## Objects in requests"]
    for name in dict.fromkeys(name for body in bodies for name in objects(schemas[body], schemas)):
        lines += ["", f"### {_shown(name)}", "", *_fields(schemas[name])]
    return "\n".join(lines) + "\n"


def _name(ref: str) -> str:
    return ref.rpartition("/")[2]


def _shown(name: str) -> str:
    return name.removesuffix("-Input")


def objects(schema: Any, schemas: dict[str, Any]) -> Iterator[str]:
    """The names of the objects in it, and of those in them."""
    if isinstance(schema, list):
        for each in schema:
            yield from objects(each, schemas)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            name = _name(schema["$ref"])
            yield name
            yield from objects(schemas[name], schemas)
        yield from objects(list(schema.values()), schemas)


def _fields(schema: dict[str, Any]) -> list[str]:
    lines = ["| field | type | range | default | origin | meaning |", "|---|---|---|---|---|---|"]
    for name, field in schema["properties"].items():
        origin = "extension" if field["x-extension"] else "OpenAI"
        default = "required" if name in schema.get("required", ()) else _default(field)
        cells = (f"`{name}`", _type(field), _range(field), default, origin, field["description"])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if isinstance(value, dict):
        value = {name: each for name, each in value.items() if each is not None} or None
    return field.get("x-default", "") if value is None else f"`{json.dumps(value)}`"


def _forms(field: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in field.get("anyOf") or field.get("oneOf") or () if each.get("type") != "null"]


def _type(field: dict[str, Any]) -> str:
    if forms := _forms(field):
        return " or ".join(dict.fromkeys(_type(each) for each in forms))
    if field.get("format") == "binary":
        return "file"
    if "$ref" in field:
        return _shown(_name(field["$ref"]))
    if "enum" in field or "const" in field:
        return " or ".join(f"`{json.dumps(each)}`" for each in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return field.get("type", "any")


def _range(field: dict[str, Any]) -> str:
    """Of a number, of the length of a text, of how many there are in a list or an object, and of what is in it."""
    found = [_range(form) for form in _forms(field)]
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
        found.append(f"`{field['pattern']}`")
    inside = [field.get(each) for each in ("items", "additionalProperties")]
    found += [f"each {_range(each)}" for each in inside if isinstance(each, dict) and _range(each)]
    return "; ".join(dict.fromkeys(each for each in found if each)).replace("|", "\\|")


def _between(least: float | None, most: float | None, unit: str) -> str:
    if most is None:
        return "" if least is None else f"{least} or more{unit}"
    return f"at most {most}{unit}" if least is None else f"{least} to {most}{unit}"


def _refused(name: str, field: Unsupported) -> str:
    allowed = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral)
    return f"- `{name}`{f' ({allowed})' if allowed else ''}: {field.advice}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
