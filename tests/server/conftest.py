from collections.abc import Sequence
from typing import Any

import pytest

from tests.server.harness import LiveServer
from tests.server.toy_service import make_toy_service
from xlaserve.server.batches.batches import Batches


@pytest.fixture
def make_live():
    """make_live(script, max_requests=, max_body=, api_keys=, batches=, **toy): a live server over a toy engine.

    **toy: see make_toy_service."""
    servers = []

    def make(
        script: bytes | Sequence[int] = b"hello",
        max_requests: int = 8,
        max_body: int = 100_000,
        api_keys: dict[str, str] | None = None,
        batches: Batches | None = None,
        **toy: Any,
    ):
        server = LiveServer(max_requests=max_requests, max_body=max_body, api_keys=api_keys, batches=batches)
        servers.append(server)
        server.service, server.runner = make_toy_service(script, **toy)
        server.state.set_ready(server.service)
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
