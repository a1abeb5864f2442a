"""Every error that leaves the server, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

No flask here.
"""

import json
from dataclasses import dataclass, field

from xlaserve.errors import (
    EngineUnavailable,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RequestTimedOut,
    XlaserveError,
)

MAX_MESSAGE_LENGTH = 2000  # characters: an error must not echo a large request back
RETRY_AFTER_SECONDS = 1  # where nothing says how long it takes


class Unauthorized(XlaserveError):
    """The request has no API key, or one that is not known (HTTP 401)."""


class ClientGone(Exception):
    """The client has closed its connection: nobody reads an answer."""


@dataclass(frozen=True)
class ErrorReply:
    """`body` is JSON bytes in OpenAI's shape."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def error_reply(error: Exception) -> ErrorReply:
    """The reply for an exception; one that is none of ours becomes a 500 that tells nothing of the inside."""
    if isinstance(error, InvalidRequest):
        return make_reply(error.status, str(error), param=error.param, code=error.code)
    if isinstance(error, Unauthorized):
        return make_reply(401, str(error), code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    if isinstance(error, Overloaded):
        return make_reply(429, str(error), code=error.code, headers={"Retry-After": str(error.retry_after)})
    if isinstance(error, EngineUnavailable):
        return make_reply(503, str(error))
    if isinstance(error, RequestTimedOut):
        return make_reply(504, str(error))
    if isinstance(error, GenerationFailed):
        return make_reply(500, str(error))
    return make_reply(500, "The server had an internal error while processing the request; its log has the details.")


def make_reply(
    status: int, message: str, *, param: str | None = None, code: str | None = None, headers: dict | None = None
) -> ErrorReply:
    """429 and 503 carry Retry-After, which the openai client follows."""
    if len(message) > MAX_MESSAGE_LENGTH:
        message = message[:MAX_MESSAGE_LENGTH] + " ..."
    kind, default_code = _KINDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    error = {"message": message, "type": kind, "param": param, "code": code or default_code}
    headers = dict(headers or {})
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return ErrorReply(status, json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace"), headers)


def body_too_large(limit: int) -> str:
    """The message for a body over `limit` bytes."""
    return f"The body is larger than {limit} bytes, the limit of this server (server.max_body)."


def file_too_large(limit: int) -> str:
    """The message for an uploaded file over `limit` bytes."""
    return f"The file is larger than {limit} bytes, the limit of this server (server.files.max_file_bytes)."


_KINDS = {
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "timeout"),
}
