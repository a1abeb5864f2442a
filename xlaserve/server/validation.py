"""Runs pydantic over a request and tells its errors in words, briefly: a large bad request gets a small answer."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from xlaserve.errors import InvalidRequest
from xlaserve.server.unsupported import Unsupported, drop_neutral

MAX_ERRORS_TOLD = 3

_Model = TypeVar("_Model", bound=BaseModel)


def validate(model: type[_Model], data: dict[str, Any], unsupported: dict[str, Unsupported]) -> _Model:
    """`data` as a `model`, nulls and unsupported fields that ask for nothing aside. Raises InvalidRequest."""
    try:
        return model.model_validate(drop_neutral(data, unsupported))
    except ValidationError as error:
        raise _explain(error) from error


def _explain(error: ValidationError) -> InvalidRequest:
    """The first few errors in words; `param` is the top-level field of the first."""
    told = [_tell(one) for one in error.errors(include_url=False, include_input=False)[:MAX_ERRORS_TOLD]]
    more = error.error_count() - len(told)
    message = "; ".join(text for _, text in told) + (f"; and {more} more" if more > 0 else "")
    return InvalidRequest(message, param=told[0][0])


def _tell(error: Any) -> tuple[str | None, str]:
    path = _path(error["loc"])
    param = str(error["loc"][0])[:80] if error["loc"] else None
    reason = error["msg"].removeprefix("Value error, ")[:300]
    if error["type"] == "missing":
        return param, f"Missing required parameter: {path!r}."
    if error["type"] == "extra_forbidden":
        return param, f"Unrecognized request argument supplied: {path}"
    if param is None:  # a check over several fields names its field itself
        param, _, reason = reason.partition(": ")
        return param, f"{param}: {reason}"
    return param, f"Invalid value for {path!r}: {reason}"


def _path(loc: tuple[int | str, ...]) -> str:
    """messages[0].content, as OpenAI writes it."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{str(part)[:80]}"
    return text.removeprefix(".")
