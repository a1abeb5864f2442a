"""The files that clients have uploaded and batches have written, each with its metadata in a JSON file beside it."""

import logging
import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, Field

from xlaserve.errors import InvalidRequest
from xlaserve.server.batches.storage import read_records, sync_folder, write_atomically
from xlaserve.server.errors import file_too_large

_logger = logging.getLogger(__name__)

Purpose = Literal["batch", "batch_output"]
FILE_ID = r"^file-[0-9a-f]{32}$"
FORM_BYTES = 64 * 1024  # of an upload beside its file
MAX_NAME_LENGTH = 255  # characters
MIN_FILE_BYTES = 4096  # what a file takes of max_total_bytes at least, or many tiny ones would fill the disk


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


class StoredFile(BaseModel):
    """`filename` is a label that the client chose, and no path."""

    id: str = Field(pattern=FILE_ID)
    tenant: str
    filename: str
    bytes: int = Field(ge=0)
    created_at: int  # Unix time
    purpose: Purpose
    order: int  # of creation


class FileStore:
    """Safe to use from any thread. Only tenants' own files exist for them. max_*: bytes.

    A file is its metadata and its data; one is there when both are.
    """

    def __init__(self, folder: Path, *, max_file_bytes: int, max_total_bytes: int):
        self.max_file_bytes = max_file_bytes
        self._max_total_bytes = max_total_bytes
        self._folder = folder / "files"
        self._incoming = folder / "incoming"
        self._lock = threading.Lock()
        self._files: dict[str, StoredFile] = {}
        self._pins: Counter[str] = Counter()
        self._last_order = 0
        for path in (self._folder, self._incoming):
            path.mkdir(exist_ok=True)
        self._read()

    def _read(self) -> None:
        for path in self._incoming.iterdir():  # uploads that the last end of the server cut
            path.unlink()
        for path, file in read_records(self._folder, StoredFile):
            if path.stem != file.id or not self._data(file.id).is_file():
                _logger.error("%s is damaged and left out: it has no data", path)
                continue
            self._files[file.id] = file
        self._last_order = max((file.order for file in self._files.values()), default=0)
        for path in self._folder.glob("*.data"):  # of a removal that was cut; damaged metadata keeps its data
            if not path.with_suffix(".json").exists():
                path.unlink()

    @contextmanager
    def incoming(self) -> Iterator[IO[bytes]]:
        """A new file, with a path in its `name`, for an upload; it is gone in the end unless it has been adopted."""
        path = self._incoming / uuid.uuid4().hex
        try:
            with open(path, "w+b") as file:
                yield file
        finally:
            path.unlink(missing_ok=True)

    def check_room(self, size: int) -> None:
        """Raises InvalidRequest when an upload of `size` bytes is more than may be stored."""
        if size > self.max_file_bytes:
            raise InvalidRequest(file_too_large(self.max_file_bytes), param="file", status=413)
        total = sum(max(file.bytes, MIN_FILE_BYTES) for file in list(self._files.values()))
        if total + max(size, MIN_FILE_BYTES) > self._max_total_bytes:
            message = f"The files of this server take {total} of {self._max_total_bytes} bytes "
            message += "(server.files.max_total_bytes): delete some first."
            raise InvalidRequest(message, param="file", code="storage_full", status=413)

    def adopt(
        self, path: Path, *, file_id: str, tenant: str, filename: str, purpose: Purpose, is_upload: bool = False
    ) -> StoredFile:
        """Makes the file at `path`, on the same disk, one of the store's. Only an upload can be refused, for its size.

        After a crash in between it can be called again; nothing is there by halves.
        """
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        with self._lock:
            size = path.stat().st_size
            if is_upload:
                self.check_room(size)
            self._last_order = max(self._last_order + 1, time.time_ns())
            stored = StoredFile(
                id=file_id,
                tenant=tenant,
                filename=_as_label(filename),
                bytes=size,
                created_at=int(time.time()),
                purpose=purpose,
                order=self._last_order,
            )
            write_atomically(self._metadata(file_id), stored.model_dump_json().encode())
            os.replace(path, self._data(file_id))
            sync_folder(self._folder)
            self._files[file_id] = stored
        return stored

    def get(self, file_id: str, tenant: str) -> StoredFile:
        """Raises InvalidRequest (404)."""
        found = self._files.get(file_id) if re.fullmatch(FILE_ID, file_id) else None
        if found is None or found.tenant != tenant:
            message = f"No such File object: {file_id[:80]}"
            raise InvalidRequest(message, param="id", code="file_not_found", status=404)
        return found

    def has(self, file_id: str) -> bool:
        return file_id in self._files

    def all_of(self, tenant: str) -> list[StoredFile]:
        """The oldest first."""
        files = [file for file in list(self._files.values()) if file.tenant == tenant]
        return sorted(files, key=lambda file: file.order)

    def open(self, file_id: str, tenant: str) -> IO[bytes]:
        """The data; it can be read to its end even if the file is deleted meanwhile. Raises InvalidRequest (404)."""
        with self._lock:
            self.get(file_id, tenant)
            return open(self._data(file_id), "rb")

    def pin(self, file_id: str, tenant: str) -> None:
        """Until it is unpinned as often the file cannot be deleted. Raises InvalidRequest (404)."""
        with self._lock:
            self.get(file_id, tenant)
            self._pins[file_id] += 1

    def unpin(self, file_id: str) -> None:
        with self._lock:
            self._pins[file_id] -= 1

    def delete(self, file_id: str, tenant: str) -> None:
        """Raises InvalidRequest: there is none (404), or a batch still reads it."""
        with self._lock:
            self.get(file_id, tenant)
            if self._pins[file_id] > 0:
                message = f"{file_id} is the input of a batch that is not finished: cancel the batch first."
                raise InvalidRequest(message, param="id", code="file_in_use")
            self._metadata(file_id).unlink(missing_ok=True)
            sync_folder(self._folder)
            self._data(file_id).unlink(missing_ok=True)
            del self._files[file_id]

    def _data(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.data"

    def _metadata(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"


def _as_label(filename: str) -> str:
    """What can be shown of it."""
    shown = "".join(char if char.isprintable() else "_" for char in filename[:MAX_NAME_LENGTH])
    return shown.encode("utf-8", "replace").decode()
