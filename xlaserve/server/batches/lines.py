"""The lines of a batch's input, checked as a whole before any of them is run, and those of its results."""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from pydantic import BaseModel

from xlaserve.errors import InvalidRequest
from xlaserve.server.json_body import parse_json_object

MAX_LINES = 50_000
MAX_ERRORS = 100  # listed of one input
MAX_ID_LENGTH = 512  # characters
_FIELDS = {"custom_id": str, "method": str, "url": str, "body": dict}
_TYPES = {str: "a string", dict: "an object"}


class LineError(BaseModel):
    """What is wrong with an input, as OpenAI shows it; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class _WrongLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None):
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(frozen=True)
class InputLine:
    """One request; `body` is what would be sent to the endpoint."""

    custom_id: str
    body: dict[str, Any]


def read_lines(file: IO[bytes], endpoint: str, max_line_bytes: int) -> Iterator[tuple[int, InputLine | _WrongLine]]:
    """(number, line) for all that are not blank. No more than one line is in memory."""
    number = 0
    while raw := file.readline(max_line_bytes + 1):
        number += 1
        is_too_long = len(raw) > max_line_bytes
        while is_too_long and raw and not raw.endswith(b"\n"):  # the rest of it
            raw = file.readline(max_line_bytes)
        try:
            if is_too_long:
                raise _WrongLine("line_too_long", f"This line has more than {max_line_bytes} bytes (server.max_body).")
            if raw.strip():
                yield number, _parse(raw, endpoint)
        except _WrongLine as wrong:
            yield number, wrong


def _parse(raw: bytes, endpoint: str) -> InputLine:
    try:
        line = parse_json_object(raw, "application/json")
    except InvalidRequest as error:
        raise _WrongLine("invalid_json_line", f"This line is not usable: {error}") from error
    for name, kind in _FIELDS.items():
        if line.get(name) is None:
            raise _WrongLine("missing_required_parameter", f"Missing required parameter: {name!r}.", name)
        if not isinstance(line[name], kind):
            raise _WrongLine("invalid_type", f"{name} must be {_TYPES[kind]}.", name)
    unknown = next((name for name in line if name not in _FIELDS), None)
    if unknown is not None:
        raise _WrongLine("unknown_parameter", f"Unknown parameter: {unknown[:80]!r}.", unknown[:80])
    if not 1 <= len(line["custom_id"]) <= MAX_ID_LENGTH:
        message = f"custom_id must have from 1 to {MAX_ID_LENGTH} characters."
        raise _WrongLine("invalid_custom_id", message, "custom_id")
    if line["method"] != "POST":
        raise _WrongLine("invalid_method", "method must be 'POST'.", "method")
    if line["url"] != endpoint:
        raise _WrongLine("mismatched_endpoint", f"url must be {endpoint!r}, the endpoint of the batch.", "url")
    if line["body"].get("stream") not in (None, False):
        raise _WrongLine("invalid_request", "Answers in a batch are not streamed: leave stream out.", "body.stream")
    return InputLine(line["custom_id"], line["body"])


def check_lines(
    file: IO[bytes], endpoint: str, max_line_bytes: int, check: Callable[[], None]
) -> tuple[int, list[LineError]]:
    """The number of requests and all that is wrong with them. `check` is called at each and may raise."""
    count, errors, seen = 0, [], set()
    for number, line in read_lines(file, endpoint, max_line_bytes):
        check()
        count += 1
        if count > MAX_LINES:
            message = f"The input has more than {MAX_LINES} requests: send several batches."
            return count, [LineError(code="too_many_requests", message=message, line=number)]
        if isinstance(line, _WrongLine):
            errors.append(LineError(code=line.code, message=str(line), line=number, param=line.param))
        elif line.custom_id in seen:
            message = "The custom_id of this request is that of another one in the batch."
            errors.append(LineError(code="duplicate_custom_id", message=message, line=number, param="custom_id"))
        else:
            seen.add(line.custom_id)
        if len(errors) >= MAX_ERRORS:
            break
    if not count:
        errors.append(LineError(code="empty_file", message="The input has no requests: each line is one."))
    return count, errors


def result_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """A line of results, its end included, for an answer or an error of the endpoint; `body` is JSON of one line."""
    response = f'{{"status_code": {status}, "request_id": {json.dumps(request_id)}, "body": '.encode() + body + b"}"
    return _result(custom_id, response, b"null")


def failure_line(custom_id: str, error: dict[str, str]) -> bytes:
    """The same for a request that has not been made."""
    return _result(custom_id, b"null", json.dumps(error).encode())


def _result(custom_id: str, response: bytes, error: bytes) -> bytes:
    start = json.dumps({"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id}).encode()
    return start[:-1] + b', "response": ' + response + b', "error": ' + error + b"}\n"
