"""docs/api.md from the OpenAPI document: `python -m xlaserve.server.api_docs > docs/api.md`."""

import sys
from collections.abc import Iterator
from typing import Any

from xlaserve.server.api_fields import COLUMNS, REFUSED, Writer, query_schema, ref_name, shown
from xlaserve.server.openapi import document

_HEAD = """# The HTTP API

Made from the server's own models (`python -m xlaserve.server.api_docs > docs/api.md`); `/openapi.json` is the same for
programs, and `/docs` of a running server is a page with the answers and with examples, too. A field that is not listed
is refused with a 400 that names it, as is a value out of its range. `null` is the same as leaving the field out. Every
error is `{"error": {"message", "type", "param", "code"}}`. The EOS token counts in `completion_tokens` and is not part
of the text.
"""
_MARKDOWN = Writer(code=lambda text: f"`{text}`", object=shown, text=str)


def markdown() -> str:
    found = document()
    schemas = found["components"]["schemas"]
    lines = [_HEAD, "| | |", "|---|---|"]
    bodies: dict[str, str] = {}  # the titles of models
    queries: list[str] = []
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            title = f"{method.upper()} {path}"
            lines.append(f"| `{title}` | {operation['summary']} |")
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                bodies[ref_name(content["schema"])] = title
            if query := query_schema(operation):
                queries += ["", f"## {title}", "", "In the URL:", "", *_fields(query)]
    for name, title in bodies.items():
        lines += ["", f"## {title}", "", *_fields(schemas[name])]
        if name in REFUSED:
            lines += ["", "Refused, but for the values named:", ""]
            for field, allowed, advice in _MARKDOWN.refused(REFUSED[name]):
                lines.append(f"- {field}{f' ({allowed})' if allowed else ''}: {advice}")
    lines += [*queries, "", "## Objects in requests"]
    for name in dict.fromkeys(name for body in bodies for name in objects(schemas[body], schemas)):
        lines += ["", f"### {shown(name)}", "", *_fields(schemas[name])]
    return "\n".join(lines) + "\n"


def objects(schema: Any, schemas: dict[str, Any]) -> Iterator[str]:
    """The names of the objects in it, and of those in them."""
    if isinstance(schema, list):
        for each in schema:
            yield from objects(each, schemas)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            name = ref_name(schema)
            yield name
            yield from objects(schemas[name], schemas)
        yield from objects(list(schema.values()), schemas)


def _fields(schema: dict[str, Any]) -> list[str]:
    rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in _MARKDOWN.rows(schema)]
    return [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *(f"| {row} |" for row in rows)]


if __name__ == "__main__":
    sys.stdout.write(markdown())
