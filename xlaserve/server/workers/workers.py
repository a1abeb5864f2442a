"""The workers of a server: each runs again when it has ended."""

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from xlaserve.errors import ConfigError
from xlaserve.server.workers.worker import Worker

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

READY_SECONDS = 120.0  # for all to know the models
RESTART_SECONDS = 1.0  # before another one takes the place of one that has ended
JOIN_SECONDS = 20.0  # for all to end: longer than one may take

_logger = logging.getLogger(__name__)


class Workers:
    """`count` of them, from construction until `stop`: they start while the models still load."""

    def __init__(self, count: int):
        self._services: list[GenerationService] = []  # that each is prepared for
        self._running: dict[int, Worker] = {}
        self._lock = threading.Lock()  # guards both
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_running, args=(place,), name=f"worker {place}", daemon=True)
            for place in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def prepare(self, services: "Iterable[GenerationService]") -> None:
        """Returns when all workers know these models. Raises ConfigError when they do not get there."""
        services = list(services)
        with self._lock:
            self._services += services
            for worker in self._running.values():
                for service in services:
                    worker.prepare(service)
        until = time.monotonic() + READY_SECONDS
        while len(self._ready()) < len(self._threads):
            if time.monotonic() > until:
                raise ConfigError(
                    f"server.api_workers: not all are ready after {READY_SECONDS:.0f} s; the log says why"
                )
            self._stopping.wait(0.02)

    def choose(self) -> Worker | None:
        """Who is to write it. None: this process, for no worker is there at the moment."""
        return min(self._ready(), key=lambda worker: worker.num_answers, default=None)

    def stop(self) -> None:
        """Answers under way end with an error."""
        self._stopping.set()
        with self._lock:
            for worker in self._running.values():
                worker.end()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _ready(self) -> list[Worker]:
        with self._lock:
            return [worker for worker in self._running.values() if worker.is_ready]

    def _keep_running(self, place: int) -> None:
        while not self._stopping.is_set():
            worker = Worker()
            with self._lock:
                self._running[place] = worker
                for service in self._services:
                    worker.prepare(service)
            if not self._stopping.is_set():  # else nobody may have told it to end
                worker.hear()
            with self._lock:
                del self._running[place]
            worker.close()
            if not self._stopping.is_set():
                _logger.error(
                    "worker %d has ended with status %s, and its answers with it: another one starts",
                    worker.process.pid,
                    worker.process.returncode,
                )
                self._stopping.wait(RESTART_SECONDS)
