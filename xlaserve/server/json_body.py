"""A request's body as a JSON object, read strictly: what others would guess, repair or lose is refused here."""

import json
import math
from typing import Any

from xlaserve.errors import InvalidRequest


def parse_json_object(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Returns the object. Raises InvalidRequest for anything but one JSON object in UTF-8.

    The content type is checked because browsers send other types across origins without asking, but never this one.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequest(
            f"The Content-Type is {media_type[:80]!r}: send the body as 'Content-Type: application/json'."
        )
    if not body.strip():
        raise InvalidRequest("The body is empty: send a JSON object.")
    try:
        text = body.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid UTF-8 (byte {error.start}).") from error
    except RecursionError as error:
        raise InvalidRequest("The body is not usable: its JSON is nested too deeply.") from error
    except ValueError as error:
        raise InvalidRequest(f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body is a JSON {_name(value)}: send a JSON object.")
    if "\\u" in text:  # a lone surrogate can only come from an escape: the decoder above refuses it as bytes
        _refuse_lone_surrogates(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _refuse_lone_surrogates(value: Any) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            todo += item
        elif isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InvalidRequest("The body holds half of a surrogate pair (\\ud800-\\udfff): not text.") from error


def _name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names[type(value)]
