"""docs/api.md from the OpenAPI document: `python -m xlaserve.server.api_docs > docs/api.md`."""

import json
import sys
from typing import Any

from xlaserve.server.openapi import document
from xlaserve.server.responses_api.unsupported import RESPONSES
from xlaserve.server.unsupported import CHAT, COMPLETION, Unsupported

_HEAD = """# The HTTP API

Made from the server's own models (`python -m xlaserve.server.api_docs > docs/api.md`); `/openapi.json` is the same for
programs. A field that is not listed is refused with a 400 that names it, as is a value out of its range. `null` is the
same as leaving the field out. Every error is `{"error": {"message", "type", "param", "code"}}`. The EOS token counts in
`completion_tokens` and is not part of the text.
"""
_REFUSED = {"CompletionRequest": COMPLETION, "ChatRequest": CHAT, "ResponsesRequest": RESPONSES}


def markdown() -> str:
    found = document()
    lines = [_HEAD, "| | |", "|---|---|"]
    bodies: dict[str, str] = {}
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            lines.append(f"| `{method.upper()} {path}` | {operation['summary']} |")
            body = operation.get("requestBody")
            if body:
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                bodies[name] = f"{method.upper()} {path}"
    for name, title in bodies.items():
        lines += ["", f"## {title}", "", *_fields(found["components"]["schemas"][name])]
        if name in _REFUSED:
            lines += [
                "",
                "Refused, but for the values named:",
                "",
                *(_refused(field, how) for field, how in _REFUSED[name].items()),
            ]
    return "\n".join(lines) + "\n"


def _fields(schema: dict[str, Any]) -> list[str]:
    lines = ["| field | type | | |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        origin = {True: "extension", False: "OpenAI"}.get(field.get("x-extension"), "")
        needed = " (required)" if name in schema.get("required", ()) else ""
        lines.append(f"| `{name}`{needed} | {_type(field)} | {origin} | {field.get('description', '')} |")
    return lines


def _type(field: dict[str, Any]) -> str:
    if forms := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in forms if each.get("type") != "null"))
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "enum" in field or "const" in field:
        return " or ".join(f"`{json.dumps(each)}`" for each in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return field.get("type", "any")


def _refused(name: str, field: Unsupported) -> str:
    allowed = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral)
    return f"- `{name}`{f' ({allowed})' if allowed else ''}: {field.advice}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
