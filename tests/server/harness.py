"""A real HTTP server on a loopback port over a toy engine, and a plain client for it."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.toy_runner import ToyRunner
from xlaserve.engine.served_models import ServedModels, Slot
from xlaserve.engine.service import GenerationService
from xlaserve.server import wsgi
from xlaserve.server.admin_access import AdminAccess
from xlaserve.server.app import create_app
from xlaserve.server.auth import ApiKeys
from xlaserve.server.batches.batches import Batches
from xlaserve.server.state import ServerState
from xlaserve.server.workers.workers import Workers

JSON = {"Content-Type": "application/json"}


def served(*services: GenerationService) -> ServedModels:
    """They stay."""
    return ServedModels([Slot(service.info.name, service=service) for service in services])


class LiveServer:
    """Serves until `close`. `state` has no service until `state.set_ready(served(service))`."""

    service: GenerationService  # set by the fixtures, as is its runner
    runner: ToyRunner

    def __init__(
        self,
        *,
        max_requests: int = 8,
        max_body: int = 100_000,
        api_keys: dict[str, str] | None = None,
        make_batches: Callable[[ServerState], Batches] | None = None,
        admin_access: AdminAccess | None = None,
        workers: Workers | None = None,
    ):
        self.state = ServerState(max_requests=max_requests, max_body=max_body)
        self.batches = make_batches(self.state) if make_batches else None
        self._server = wsgi.HttpServer(
            create_app(self.state, ApiKeys(api_keys), self.batches, admin_access=admin_access),
            wsgi.bind("127.0.0.1", 0),
            max_requests=max_requests,
            max_body=max_body,
            max_upload=self.batches.files.max_file_bytes if self.batches else None,
            workers=workers,
        )
        self.port = self._server.port
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def request(self, method: str, path: str, body: Any = None, headers: dict | None = None) -> "Answer":
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, JSON if headers is None else headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> "Answer":
        return self.request("GET", path)

    def post(self, path: str, body: Any, headers: dict | None = None) -> "Answer":
        return self.request("POST", path, body, headers)

    def complete(self, **fields: Any) -> "Answer":
        return self.post("/v1/completions", {"model": "toy", "prompt": "hi"} | fields)

    def chat(self, **fields: Any) -> "Answer":
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", {"model": "toy", "messages": messages} | fields)

    @contextmanager
    def open(self, path: str, body: dict) -> Iterator[http.client.HTTPConnection]:
        """A request that has been sent and not read."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body), JSON)
            yield connection
        finally:
            connection.close()


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_refuse)

    @property
    def error(self) -> dict:
        """The error, after checking that it has OpenAI's shape."""
        assert self.headers["Content-Type"] == "application/json"
        assert len(self.body) < 10_000
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert isinstance(error["type"], str)
        return error

    @property
    def events(self) -> list[dict]:
        """The chunks of a stream, after checking its frame."""
        assert self.headers["Content-Type"].startswith("text/event-stream")
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        assert all(event.startswith("data: ") for event in events)
        return [json.loads(event.removeprefix("data: "), parse_constant=_refuse) for event in events]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in JSON")


def wait_until(condition, seconds: float = 2.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
