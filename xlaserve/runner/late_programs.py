"""Programs that a server can begin without: made in the background, and handed over one by one.

It knows nothing of devices; a job is a function that takes long.
"""

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

Key = tuple[str, Any]  # kind of program, and its size


@dataclass(frozen=True)
class LateStatus:
    left: tuple[Key, ...] = ()  # not made yet
    failed: tuple[Key, ...] = ()  # what has been told in the log; it will not be there


class LatePrograms:
    """Begins at once, with threads of its own. One that fails is told, and the others are made all the same.

    join(key, program) is called for each as it is finished, by one thread at a time. num_threads: jobs at a time.
    """

    def __init__(self, jobs: Mapping[Key, Callable[[], Any]], join: Callable[[Key, Any], None], num_threads: int):
        self._waiting = deque(jobs.items())
        self._left = dict.fromkeys(jobs)
        self._failed: list[Key] = []
        self._join = join
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"late-programs-{number}", daemon=True)
            for number in range(min(num_threads, len(jobs)))
        ]
        self._num_working = len(self._threads)
        if self._threads:
            atexit.register(self.stop)  # what compiles cannot be stopped, and Python cannot exit around it
        for thread in self._threads:
            thread.start()

    def status(self) -> LateStatus:
        with self._changed:
            return LateStatus(tuple(self._left), tuple(self._failed))

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return any(thread.is_alive() for thread in self._threads)

    def cancel(self) -> None:
        """No more jobs are begun."""
        with self._changed:
            self._waiting.clear()

    def stop(self) -> None:
        """The same, and waits for those under way."""
        self.cancel()
        for thread in self._threads:
            thread.join()

    def wait(self, timeout: float) -> bool:
        """Until all are made or have failed; False when they are not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, timeout)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            key, make = job
            try:
                program = make()
                with self._changed:
                    self._join(key, program)
            except Exception as error:
                kind, size = key
                logger.error("the program %s %s cannot be made; serving goes on without it", kind, size, exc_info=error)
                with self._changed:
                    self._failed.append(key)
            with self._changed:
                del self._left[key]
                self._changed.notify_all()
        with self._changed:
            self._num_working -= 1
            if not self._num_working:
                atexit.unregister(self.stop)  # which would keep the engine in memory

    def _next(self) -> tuple[Key, Callable[[], Any]] | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting else None
