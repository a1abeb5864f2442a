"""Lets a model sleep that nobody has asked anything for a while."""

import logging
import threading

from xlaserve.engine.model_admin import ModelAdmin, SleepLevel
from xlaserve.errors import XlaserveError

logger = logging.getLogger(__name__)

LOOKS = 20  # at whether it is idle, in the time after which it sleeps


class IdleSleeper:
    """Looks now and then, on a thread of its own, from construction to `stop`."""

    def __init__(self, admin: ModelAdmin, after: float, level: SleepLevel):
        """after: seconds without a request."""
        self._admin = admin
        self._after = after
        self._level: SleepLevel = level
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idle sleeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(min(self._after / LOOKS, 1.0)):
            try:
                self._admin.sleep_if_idle(self._after, self._level)
            except XlaserveError as error:
                logger.warning("the model cannot be laid to sleep: %s", error)
