import pytest

from tests.server.harness import LiveServer
from tests.server.toy_service import make_toy_service


@pytest.fixture
def make_live():
    """make_live(script, step_seconds, **limits): a live server over a toy engine; see make_toy_service."""
    servers = []

    def make(
        script: bytes = b"hello", step_seconds: float = 0.0, fail_at=(), max_waiting: int = 1024, **limits
    ) -> LiveServer:
        server = LiveServer(**limits)
        servers.append(server)
        server.service, server.runner = make_toy_service(
            script, max_waiting=max_waiting, step_seconds=step_seconds, fail_at=fail_at
        )
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
