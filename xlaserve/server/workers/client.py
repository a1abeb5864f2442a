"""The socket of one client, written to without waiting: what it does not take yet is kept."""

import socket
import time
from collections.abc import Callable

from xlaserve.server.pump import FULL_BYTES


class Client:
    """The body of an answer goes to it. The socket belongs to another process, too, which reads it and ends the answer.

    chunked: the body is framed as HTTP/1.1 frames one of unknown length. wants_room: called with whether bytes wait,
    when that changes.
    """

    def __init__(self, sock: socket.socket, *, chunked: bool, wants_room: Callable[[bool], None]):
        self._sock = sock
        self._chunked = chunked
        self._wants_room = wants_room
        self._waiting = bytearray()
        self._is_held = False
        self._waits = False
        self.last_progress = time.monotonic()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > FULL_BYTES

    @property
    def is_empty(self) -> bool:
        """All has been written."""
        return not self._waiting

    def write(self, data: bytes) -> None:
        """Raises OSError when the client has gone."""
        if self._chunked:
            data = b"%X\r\n%b\r\n" % (len(data), data)
        if self._waiting or self._is_held:
            self._waiting += data
        elif (sent := self._send(data)) < len(data):
            self._waiting += data[sent:]
            self._tell()

    def write_end(self) -> None:
        """What ends a chunked body; nothing may follow. Raises as `write`."""
        if self._chunked:
            self.write(b"")

    def hold(self) -> None:
        """From now on nothing leaves until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Raises as `write`."""
        self._is_held = False
        self.flush()

    def flush(self) -> None:
        """Raises as `write`."""
        if self._waiting and not self._is_held:
            del self._waiting[: self._send(self._waiting)]
        self._tell()

    def close(self) -> None:
        if self._waits:
            self._wants_room(False)
        self._sock.close()

    def _send(self, data: bytes | bytearray) -> int:
        try:
            sent = self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        self.last_progress = time.monotonic()
        return sent

    def _tell(self) -> None:
        waits = bool(self._waiting) and not self._is_held
        if waits != self._waits:
            self._waits = waits
            self._wants_room(waits)
