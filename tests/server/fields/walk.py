"""The fields of a request, those of the objects in it too, as the schema of its model has them."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel


def fields(model: type[BaseModel]) -> list[str]:
    """Dotted paths, lists left out: "stop", "stream_options", "stream_options.include_usage", "messages.role"."""
    schema = model.model_json_schema()
    return list(dict.fromkeys(_walk(schema, schema.get("$defs", {}), "")))


def _walk(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for name, field in schema.get("properties", {}).items():
        yield prefix + name
        yield from _walk(field, definitions, f"{prefix}{name}.")
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _walk(part, definitions, prefix)
    if isinstance(schema.get("items"), dict):
        yield from _walk(schema["items"], definitions, prefix)
