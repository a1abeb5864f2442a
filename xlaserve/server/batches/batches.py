"""The files and batches of one server, in one folder, and the thread that runs them."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from xlaserve.config import FilesSection
from xlaserve.errors import InvalidRequest
from xlaserve.server.batches.batch_store import Batch, BatchStore
from xlaserve.server.batches.file_store import FileStore
from xlaserve.server.batches.metrics import BatchMetrics
from xlaserve.server.batches.runner import BatchRunner
from xlaserve.server.batches.storage import lock_folder
from xlaserve.server.protocol.batch import BatchRequest

if TYPE_CHECKING:
    from xlaserve.engine.served_models import ServedModels
    from xlaserve.server.state import ServerState


class Batches:
    """From construction until `close` the folder is this server's; batches run while `state` has a service.

    now: Unix time. Raises ConfigError.
    """

    def __init__(
        self,
        folder: Path,
        section: FilesSection,
        state: "ServerState",
        *,
        now: Callable[[], float] = time.time,
    ):
        self._lock = lock_folder(folder)
        limits = {"max_file_bytes": section.max_file_bytes, "max_total_bytes": section.max_total_bytes}
        self.files = FileStore(folder, **limits)
        self.store = BatchStore(folder, now)
        self.runner = BatchRunner(
            state, self.files, self.store, max_lines=section.batch_lines, max_line_bytes=state.max_body
        )

    def measure(self, models: "ServedModels") -> None:
        """Shows the batches among the models' metrics, by the name of the first."""
        models.registry.register(BatchMetrics(self, models.slots[0].name))

    def create(self, asked: BatchRequest, tenant: str) -> Batch:
        """Raises InvalidRequest when there is no such input, Overloaded when there are too many batches."""
        try:
            self.files.pin(asked.input_file_id, tenant)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), param="input_file_id", code=error.code) from error
        try:
            purpose = self.files.get(asked.input_file_id, tenant).purpose
            if purpose != "batch":
                message = f"The purpose of {asked.input_file_id} is {purpose!r}: it must be 'batch'."
                raise InvalidRequest(message, param="input_file_id")
            batch = self.store.create(asked, tenant)
        except BaseException:
            self.files.unpin(asked.input_file_id)
            raise
        self.runner.wake()
        return batch

    def cancel(self, batch_id: str, tenant: str) -> Batch:
        """Raises InvalidRequest."""
        batch = self.store.cancel(batch_id, tenant)
        self.runner.wake()
        return batch

    def stop(self, timeout: float) -> bool:
        """Runs no more batches; what runs is left for the next start. False: something has not ended in time."""
        return self.runner.stop(timeout)

    def close(self) -> None:
        """Leaves the folder to others, after `stop`."""
        os.close(self._lock)
