"""The one seam to the WSGI server, waitress: nothing else imports it.

One thread per request being served, and a few more for what answers at once; one thread (the loop) for all sockets.
"""

import copy
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import create_server
from waitress.task import ErrorTask

from xlaserve.errors import ConfigError
from xlaserve.server.batches.file_store import FORM_BYTES
from xlaserve.server.errors import body_too_large, file_too_large, make_reply
from xlaserve.server.pump import FULL_BYTES, Pump
from xlaserve.server.sse import EventStream
from xlaserve.server.workers.workers import Workers

SPARE_THREADS = 8  # for /health, /metrics and refusals while every generation thread is taken
LOOP_SECONDS = 1.0
CLOSE_SECONDS = 5.0  # to send what is still buffered
WORKER_SECONDS = 1.0  # then, for the threads to end
# A body over the limit is read to its end up to this many times the limit, and refused by the application: a client
# whose connection is cut while it sends seldom reads the answer. Larger ones are cut.
BODY_LEEWAY = 4
UPLOADS = "/v1/files"
UPLOAD_LEEWAY = 2  # likewise


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError naming the address, e.g. when the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except UnicodeError as error:  # of the encoding of host names: an empty label, or one over 63 characters
        raise ConfigError(f"cannot listen on {host}:{port}: {host!r} is no host name or address") from error
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a restart must wait for old connections
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return sock


class _ErrorTask(ErrorTask):
    """Answers what never reaches the application (malformed HTTP, a body that is cut) in OpenAI's shape."""

    def execute(self) -> None:
        request: Any = self.request
        error = request.error
        if error.code == 413 and request.adj.max_upload is not None:
            message = file_too_large(request.adj.max_upload)
        elif error.code == 413:
            message = body_too_large(request.adj.max_request_body_size // BODY_LEEWAY)
        else:
            message = f"{error.reason}: {error.body}"
        reply = make_reply(error.code, message)
        self.status = f"{error.code} {error.reason}"
        self.response_headers = [("Content-Type", "application/json")]
        self.set_close_on_finish()
        self.content_length = len(reply.body)
        self.write(reply.body)


class _Parser(HTTPRequestParser):
    """Lets the body of an upload be larger than others: `adj.of_uploads` are the settings for those, if any."""

    adj: Any
    path: str  # of a header that could be parsed

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if self.adj.of_uploads is not None and self.path == UPLOADS:
            self.adj = self.adj.of_uploads


class _Channel(HTTPChannel):
    error_task_class = _ErrorTask
    parser_class = _Parser


class _Writer:
    """To the client of one request, by any thread."""

    def __init__(self, write: Any):
        self.write = write  # of waitress' task: the one that WSGI knows
        self._task = write.__self__

    @property
    def is_full(self) -> bool:
        return self._task.channel.total_outbufs_len > FULL_BYTES

    @property
    def chunked(self) -> bool:
        """How the body is framed; waitress writes its end. Known once the headers are written."""
        return self._task.chunked_response

    def hand_over(self) -> socket.socket | None:
        """The client's socket, for another process, once the headers have gone to it.

        None where something waits to be written still: waitress would write it amid what the other process does.
        """
        self.write(b"")
        channel = self._task.channel
        with channel.outbuf_lock:  # under which waitress tells that it closes the socket, before it does
            if channel.connected and not channel.total_outbufs_len:
                return channel.socket.dup()
        return None


class _Written:
    """A stream that is written: waitress has only to close it."""

    def __init__(self, stream: EventStream):
        self.close = stream.close

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


def _pumped(app: Callable, pump: Pump, workers: Workers | None) -> Callable:
    """`app`, whose streams of events are written by a worker or the pump: the request's own thread waits for their end.

    The pump does it where no worker is there, or the client cannot be handed over.
    """

    def write_events(stream: EventStream, writer: _Writer) -> None:
        worker = workers.choose() if workers else None
        client = writer.hand_over() if worker else None
        if worker is None or client is None:
            pump.send(stream, writer)
        else:
            with client:
                worker.send(stream, client.fileno(), chunked=writer.chunked)

    def pumped(environ: Any, start_response: Callable) -> Any:
        writes = []

        def start(*args: Any) -> Callable:
            writes.append(start_response(*args))
            return writes[-1]

        answer = app(environ, start)
        if isinstance(answer, EventStream):
            try:
                write_events(answer, _Writer(writes[-1]))
            except BaseException:
                answer.close()  # waitress does it for what has been returned
                raise
            return _Written(answer)
        return answer

    return pumped


class HttpServer:
    """Serves `app` on a bound socket, from construction until `close()`.

    max_requests: requests the application works on at a time; it refuses more. max_body: bytes, max_upload: of a file.
    workers: who writes the events of streams; None: a thread.
    """

    def __init__(
        self,
        app: Callable,
        sock: socket.socket,
        *,
        max_requests: int,
        max_body: int,
        max_upload: int | None = None,
        workers: Workers | None = None,
    ):
        self._sockets: dict[int, Any] = {}
        self._pump = Pump()
        self._server: Any = create_server(
            _pumped(app, self._pump, workers),
            map=self._sockets,
            sockets=[sock],
            threads=max_requests + SPARE_THREADS,
            connection_limit=2 * max_requests + 64,  # beyond it new connections wait: idle ones must not fill it
            asyncore_use_poll=True,  # select() ends at file descriptor 1024
            channel_request_lookahead=1,  # or a closed connection is noticed only on the next write
            max_request_body_size=BODY_LEEWAY * max_body,
            log_socket_errors=False,
            ident="xlaserve",
        )
        self._server.channel_class = _Channel
        settings = self._server.adj
        settings.of_uploads = settings.max_upload = None
        if max_upload is not None:
            settings.of_uploads = copy.copy(settings)
            settings.of_uploads.max_upload = max_upload
            settings.of_uploads.max_request_body_size = UPLOAD_LEEWAY * (max_upload + FORM_BYTES)
        self.host, self.port = sock.getsockname()[:2]
        self._wake_lock = threading.Lock()
        self._is_closed = False
        self._write_to_loop = self._server.pull_trigger
        self._server.pull_trigger = self._wake_loop
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes no more connections, sends what is buffered, closes everything."""
        self._closing = True
        self._wake_loop()
        self._thread.join()
        self._server.task_dispatcher.shutdown(timeout=WORKER_SECONDS)
        self._pump.stop()
        with self._wake_lock:
            self._is_closed = True
        wasyncore.close_all(self._sockets)

    def _wake_loop(self) -> None:
        """Called by the worker threads, some of which may outlive `close`: the pipe that they would write to is closed
        by then, or its descriptor another file's."""
        with self._wake_lock:
            if not self._is_closed:
                self._write_to_loop()

    def _loop(self) -> None:
        while not self._closing:
            self._poll(LOOP_SECONDS)
        self._server.accepting = False
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._is_busy() and time.monotonic() < deadline:
            self._poll(0.05)

    def _poll(self, timeout: float) -> None:
        wasyncore.loop(timeout=timeout, use_poll=True, map=self._sockets, count=1)

    def _is_busy(self) -> bool:
        channels = list(self._server.active_channels.values())
        return any(channel.requests or channel.total_outbufs_len for channel in channels)
