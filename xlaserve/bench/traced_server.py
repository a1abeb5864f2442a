"""The load of a trace over HTTP: a server in this process, and a client in one of its own."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from xlaserve.bench.client import Server, send_at_once
from xlaserve.bench.server_process import ServerFailed
from xlaserve.bench.workload import Job
from xlaserve.engine.served_models import ServedModels, Slot
from xlaserve.engine.service import GenerationService
from xlaserve.engine.tracing import Trace, recorded
from xlaserve.server.app import create_app
from xlaserve.server.pump import Pump
from xlaserve.server.state import ServerState
from xlaserve.server.wsgi import HttpServer, bind

_MAX_BODY = 2**26  # bytes


def serve_traced(service: GenerationService, trace: Trace, jobs: Sequence[Job]) -> None:
    """Sends all jobs at once, and records until all are answered. Raises ServerFailed where one is not."""
    spawn = multiprocessing.get_context("spawn")
    with _serving(service, trace, len(jobs)) as url, ProcessPoolExecutor(1, mp_context=spawn) as client:
        server = Server(url, service.info.name, body={"temperature": 0, "ignore_eos": True})
        client.submit(send_at_once, server, jobs[:1]).result()  # the process has started, and what is done once is done
        with recorded(service, trace):
            errors = client.submit(send_at_once, server, jobs).result()
    if errors:
        raise ServerFailed(errors[0])


@contextmanager
def _serving(service: GenerationService, trace: Trace, num_requests: int) -> Iterator[str]:
    limits: dict[str, Any] = {"max_requests": num_requests, "max_body": _MAX_BODY}
    state = ServerState(**limits)
    state.set_ready(ServedModels([Slot(service.info.name, service=service)]))
    with patch.object(Pump, "_visit", trace.timed("events of a stream", Pump._visit)):
        server = HttpServer(create_app(state), bind("127.0.0.1", 0), **limits)
        try:
            yield f"http://{server.host}:{server.port}"
        finally:
            server.close()
