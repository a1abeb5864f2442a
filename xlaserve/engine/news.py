"""How the reader of several streams of outputs hears of new ones. Knows nothing else."""

import threading
from collections.abc import Callable


class News:
    """`set` when one of them has something new, by their writer. The reader waits for it, or has a listener called.

    of_ends: only ends are news.
    """

    def __init__(self):
        self.of_ends = False
        self.listener: Callable[[], None] | None = None  # called in place of waking who waits
        self._event = threading.Event()

    def set(self) -> None:
        if self.listener is None:
            self._event.set()
        else:
            self.listener()

    def clear(self) -> None:
        if self._event.is_set():  # which needs no lock
            self._event.clear()

    def wait(self, timeout: float) -> None:
        """Returns at once if it has been set since it was cleared."""
        self._event.wait(timeout)
