"""The files and batches of one server, in one folder."""

import os
from pathlib import Path

from xlaserve.config import FilesSection
from xlaserve.server.batches.file_store import FileStore
from xlaserve.server.batches.storage import lock_folder


class Batches:
    """From construction until `close` the folder is this server's. Raises ConfigError."""

    def __init__(self, folder: Path, section: FilesSection):
        self._lock = lock_folder(folder)
        limits = {"max_file_bytes": section.max_file_bytes, "max_total_bytes": section.max_total_bytes}
        self.files = FileStore(folder, **limits)

    def close(self) -> None:
        os.close(self._lock)
