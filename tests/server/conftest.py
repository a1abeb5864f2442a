import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.server.harness import LiveServer, served
from tests.server.test_tools import TEMPLATE, saying
from tests.server.toy_service import make_toy_service
from tests.toys import byte_level_tokenizer
from xlaserve.config import FilesSection
from xlaserve.server.admin_access import AdminAccess
from xlaserve.server.batches.batches import Batches
from xlaserve.server.state import ServerState
from xlaserve.server.workers.workers import Workers


@pytest.fixture(scope="session")
def one_worker() -> Iterator[Workers]:
    """For all tests that want one: whatever servers there are, it is told of their models with their answers."""
    workers = Workers(1)
    yield workers
    workers.stop()


@pytest.fixture
def workers() -> Workers | None:
    """Who writes the streams of `make_live`: a thread, but where a module says otherwise."""
    return None


@pytest.fixture
def make_live(workers):
    """make_live(script, max_requests=, max_body=, api_keys=, make_batches=, admin_access=, **toy): a live toy server.

    **toy: see make_toy_service."""
    servers = []

    def make(
        script: bytes | Sequence[int] = b"hello",
        max_requests: int = 8,
        max_body: int = 100_000,
        api_keys: dict[str, str] | None = None,
        make_batches: Callable[[ServerState], Batches] | None = None,
        admin_access: AdminAccess | None = None,
        **toy: Any,
    ):
        server = LiveServer(
            max_requests=max_requests,
            max_body=max_body,
            api_keys=api_keys,
            make_batches=make_batches,
            admin_access=admin_access,
            workers=workers,
        )
        servers.append(server)
        server.service, server.runner = make_toy_service(script, **toy)
        if workers:
            workers.prepare([server.service])
        server.state.set_ready(served(server.service))
        return server

    yield make
    for server in servers:
        server.state.stop()
        server.close()
        server.runner.released.set()
        assert server.service.shutdown(timeout=0)
        assert server.runner.violations == []


@pytest.fixture
def live(make_live) -> LiveServer:
    return make_live()


@pytest.fixture
def responding(make_live):
    """responding(script, template=, **toy): a server that writes tool calls as hermes models do."""

    def make(script: bytes = b"hello", template: str = TEMPLATE, **toy: Any):
        tokenizer = byte_level_tokenizer(template=template)
        options = {"tokenizer": tokenizer, "tool_parser": "hermes", "max_model_len": 2000, "num_blocks": (1000,)} | toy
        options.setdefault("next_token", saying(tokenizer, script))
        return make_live(script, **options)

    return make


@pytest.fixture
def keep(make_live, tmp_path):
    """keep(api_keys=, now=, toy={...}, folder=, **section): a server with files and batches in tmp_path / folder.

    A second one takes the folder over from the first, which has ended as if killed while its lines were under way.
    """
    kept: list[LiveServer] = []

    def end(server: LiveServer) -> None:
        assert server.batches
        assert server.batches.stop(10)
        server.batches.close()

    def make(
        api_keys: dict[str, str] | None = None,
        now: Callable[[], float] = time.time,
        toy: dict[str, Any] | None = None,
        folder: str = "files",
        **section: Any,
    ) -> LiveServer:
        while kept:
            end(kept.pop())

        def make_batches(state: ServerState) -> Batches:
            return Batches(tmp_path / folder, FilesSection(**section), state, now=now)

        server = make_live(api_keys=api_keys, make_batches=make_batches, **(toy or {}))
        kept.append(server)
        return server

    yield make
    while kept:
        end(kept.pop())
