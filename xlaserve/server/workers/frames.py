"""What the engine's process and a worker tell each other: frames of a length, a version, a kind and a body.

Both are of one machine and one installation, so numbers are in its byte order. The version is for a worker that is
started after the installation has been replaced below a running server: it says so and ends.
"""

import json
import socket
import struct
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

VERSION = 1
_HEAD = struct.Struct("=IBB")  # bytes of the body, version, kind
_READ_BYTES = 2**18
_MAX_DESCRIPTORS = 16  # that one read may bring


class Kind(IntEnum):
    # to a worker
    MODEL = 1  # how a model's answers are read and written
    ANSWER = 2  # an answer to be written, with the descriptor of its client's socket
    OUTPUTS = 3  # what a step, or a few, have made for all answers of the worker
    END = 4  # nothing more will come for an answer: an error, or its client has gone
    KEPT = 5  # an answer has been stored: its client may be told of its end
    # from a worker
    READY = 6  # it knows the model now
    ABORT = 7  # a generation is to be ended: a stop string has been found, or another one of its answer has failed
    KEEP = 8  # an answer to be stored
    OVER = 9  # an answer has been written, or its client has gone


class WrongVersion(Exception):
    """The other side is of another installation."""


def frame(kind: Kind, body: bytes) -> bytes:
    return _HEAD.pack(len(body), VERSION, kind) + body


def json_frame(kind: Kind, content: dict[str, Any]) -> bytes:
    return frame(kind, json.dumps(content).encode())


class FrameReader:
    """The frames that come over a stream socket, and the descriptors that come with them, in order."""

    def __init__(self, sock: socket.socket):
        self.descriptors: deque[int] = deque()
        self._sock = sock
        self._data = bytearray()

    def read(self) -> bool:
        """One read from the socket, which may wait; False at its end. Raises OSError."""
        data, descriptors, _flags, _address = socket.recv_fds(self._sock, _READ_BYTES, _MAX_DESCRIPTORS)
        self.descriptors.extend(descriptors)
        self._data += data
        return bool(data)

    def frames(self) -> Iterator[tuple[Kind, bytes]]:
        """Those that are whole by now. Raises WrongVersion."""
        start = 0
        while len(self._data) - start >= _HEAD.size:
            size, version, kind = _HEAD.unpack_from(self._data, start)
            if version != VERSION:
                raise WrongVersion(f"frames of version {version}, not {VERSION}")
            end = start + _HEAD.size + size
            if len(self._data) < end:
                break
            body = bytes(self._data[start + _HEAD.size : end])
            start = end
            yield Kind(kind), body
        del self._data[:start]
