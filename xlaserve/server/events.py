"""Server-sent events, one by one."""

import uuid
from collections.abc import Callable
from json.encoder import encode_basestring

from xlaserve.server.responses import Reply

_MARK = uuid.uuid4().hex  # in no model's name


def event(data: bytes, name: str | None = None) -> bytes:
    """name: on a line of its own, where events have different ones."""
    kind = b"" if name is None else f"event: {name}\n".encode()
    return kind + b"data: " + data + b"\n\n"


class Frame:
    """Events that differ in their text only: pydantic writes the first, and the others are filled in.

    make: the chunk with a text.
    """

    def __init__(self, make: Callable[[str], Reply]):
        self._before, self._after = event(make(_MARK).json_bytes()).split(f'"{_MARK}"'.encode())

    def event(self, text: str) -> bytes:
        return self._before + encode_basestring(text).encode() + self._after
