"""GET /docs: the OpenAPI document as a page that needs nothing from anywhere: no script, and its style is in it."""

import base64
import functools
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from flask import Blueprint, Response, request

from xlaserve.errors import EngineUnavailable
from xlaserve.server.api_fields import COLUMNS, REFUSED, Writer, query_schema, shown
from xlaserve.server.examples import Examples
from xlaserve.server.http import needs_key, server_state
from xlaserve.server.openapi import document

routes = Blueprint("docs", __name__)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 72rem; margin: 0 auto;
  padding: 1rem; }
h1, h2, h3 { line-height: 1.2; }
a { color: #0550ae; }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f4f6f8; border-radius: 4px; }
code { padding: 0 .25em; overflow-wrap: anywhere; }
pre { padding: .75rem; overflow-x: auto; }
details { border: 1px solid #d5dae0; border-radius: 6px; margin: .5rem 0; padding: 0 .75rem; }
summary { cursor: pointer; padding: .5rem 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.about { color: #57606a; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-top: 1px solid #e4e8ec; }
th { border-top: 0; font-weight: 600; }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_HEAD = """
<p>Every endpoint and every field of this server. For programs: <a href="/openapi.json">/openapi.json</a>.</p>
<ul>
<li>A field that is not listed is refused with a 400 that names it, as is a value out of its range.</li>
<li><code>null</code> is the same as leaving the field out.</li>
<li>OpenAI: one of OpenAI's fields, as it is there. Extension: one that OpenAI does not have.</li>
<li>Every error is <code>{"error": {"message", "type", "param", "code"}}</code>.</li>
</ul>
"""


@routes.get("/docs")
def docs() -> Response:
    try:
        model = server_state().models().slots[0].name
    except EngineUnavailable:  # the page is there all the same
        model = "MODEL"
    examples = Examples(request.host_url.rstrip("/"), model, with_key=needs_key())
    return Response(page(examples), mimetype="text/html", headers=HEADERS)


def page(examples: Examples) -> str:
    """HTML."""
    found = document()
    title = escape(f"{found['info']['title']} {found['info']['version']}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>{_HEAD}<h2>Endpoints</h2>\n"
        f"{''.join(_operations(found, examples))}<h2>Objects</h2>\n{_objects()}</body>\n</html>\n"
    )


def _operations(found: dict[str, Any], examples: Examples) -> Iterator[str]:
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            what = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code>'
            yield f"<details>\n<summary>{what} {escape(operation['summary'])}</summary>\n"
            if (example := examples.of(method, path)) is not None:
                yield f"<pre>{escape(example)}</pre>\n"
            yield from _parts(operation)
            yield "</details>\n"


def _parts(operation: dict[str, Any]) -> Iterator[str]:
    """The query, and links to what an operation takes and answers."""
    if query := query_schema(operation):
        yield f"<p>In the URL:</p>\n{_table(COLUMNS, _HTML.rows(query))}"
    for content_type, content in operation.get("requestBody", {"content": {}})["content"].items():
        yield f"<p>Body ({_code(content_type)}): {_HTML.type(content['schema'])}</p>\n"
    for content_type, content in operation["responses"]["200"]["content"].items():
        schema = content.get("schema")
        if content_type == "text/event-stream":
            yield f"<p>With {_code('stream')}, events: {_event(schema)}</p>\n"
        else:
            yield f"<p>Answer ({_code(content_type)}){f': {_HTML.type(schema)}' if schema else ''}</p>\n"


def _event(schema: dict[str, Any]) -> str:
    data = schema["properties"]["data"]
    return " or ".join(_HTML.type(form.get("contentSchema", form)) for form in data.get("anyOf", [data]))


@functools.cache
def _objects() -> str:
    schemas = document()["components"]["schemas"]
    return "".join(_object(name, schema) for name, schema in sorted(schemas.items()))


def _object(name: str, schema: dict[str, Any]) -> str:
    about = escape(schema.get("description", "").partition("\n\n")[0])
    rows = _HTML.rows(schema)
    content = _table(COLUMNS, rows) if rows else f"<p>{_HTML.type(schema)}</p>\n"
    if name in REFUSED:
        refused = _table(("field", "but for", "what to do"), _HTML.refused(REFUSED[name]))
        content += f"<p>Refused, but for the values named:</p>\n{refused}"
    summary = f'<summary>{_code(name)} <span class="about">{about}</span></summary>'
    # An id within, not that of the details: browsers open them for a link to it.
    return f'<details>\n{summary}\n<div id="{escape(name)}">\n{content}</div>\n</details>\n'


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows]
    titles = "".join(f"<th>{title}</th>" for title in head)
    return f'<div class="table"><table>\n<tr>{titles}</tr>\n{"".join(lines)}</table></div>\n'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}">{escape(shown(name))}</a>'


_HTML = Writer(code=_code, object=_link, text=escape)
