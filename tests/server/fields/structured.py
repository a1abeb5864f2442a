"""What the fields inside response_format and structured_outputs do, and those inside tools and messages."""

from typing import Any

from tests.server.fields.generation import SCHEMA, says
from tests.server.fields.said import Entry, NoEffect, effect

NUMBER = {"const": 5}


def _format(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema} | more}


def _tags(begin: str, trigger: str) -> dict[str, Any]:
    tag = {"begin": begin, "schema": NUMBER, "end": ";"}
    return {"type": "structural_tag", "structures": [tag], "triggers": [trigger]}


def _tagged(text: str):
    """The model says A or what it must: after A comes what a tag that begins so allows."""
    return lambda without, with_it, _: with_it.text.startswith(text) and not without.text.startswith(text)


STRUCTURED: dict[str, Entry] = {
    "response_format": effect(_format(), says('{"a":1}'), max_tokens=40),
    "response_format.type": effect(
        {"type": "json_object"},
        lambda without, with_it, _: with_it.text[0] == "{" != without.text[0],
        response_format={"type": "text"},
    ),
    "response_format.json_schema": effect(_format(), says('{"a":1}'), max_tokens=40),
    "response_format.json_schema.schema": effect(
        _format(), says('{"a":1}'), max_tokens=40, response_format=_format(NUMBER)
    ),
    "response_format.json_schema.name": NoEffect("the client's own", _format(name="x"), _format()),
    "response_format.json_schema.description": NoEffect("the client's own", _format(description="x"), _format()),
    "response_format.json_schema.strict": NoEffect(
        "every schema is kept to", _format(strict=False), _format(strict=True)
    ),
    "response_format.structures": effect(
        _tags("AA", "A"), _tagged("AA5;"), logit_bias={"65": 100}, response_format=_tags("AB", "A")
    ),
    "response_format.triggers": effect(
        _tags("AA", "AA"), _tagged("AA5;"), logit_bias={"65": 100}, response_format=_tags("AAB", "AAB")
    ),
    "structured_outputs": effect({"choice": ["hello"]}, says("hello")),
    "structured_outputs.json": effect({"json": SCHEMA}, says('{"a":1}'), max_tokens=40),
    "structured_outputs.regex": effect({"regex": "b{3}"}, says("bbb")),
    "structured_outputs.choice": effect({"choice": ["hello"]}, says("hello")),
    "structured_outputs.grammar": effect({"grammar": 'root ::= "hello"'}, says("hello")),
    "structured_outputs.json_object": effect(
        {"json_object": True}, lambda without, with_it, _: with_it.text[0] == "{" != without.text[0]
    ),
    "structured_outputs.structural_tag": effect(
        {"structural_tag": {"structures": [{"begin": "AA", "schema": NUMBER, "end": ";"}], "triggers": ["A"]}},
        _tagged("AA5;"),
        logit_bias={"65": 100},
    ),
}
