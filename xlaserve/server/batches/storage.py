"""How files and batches get to disk: whole or not at all, by one server at a time."""

import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from xlaserve.errors import ConfigError

_logger = logging.getLogger(__name__)
_Record = TypeVar("_Record", bound=BaseModel)


def lock_folder(folder: Path) -> int:
    """Makes the folder and keeps other servers out until the resulting descriptor is closed. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"server.files.folder: {folder}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"server.files.folder: {folder}: another server uses it") from error
    return descriptor


def write_atomically(path: Path, data: bytes) -> None:
    """On return it is on disk; after a crash there is the old content or the new, never a part."""
    draft = path.with_name(path.name + ".draft")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Names that were made, changed or removed in it are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_records(folder: Path, model: type[_Record]) -> Iterator[tuple[Path, _Record]]:
    """The records of a folder. One that cannot be used is told in the log and left as it is."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield path, model.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            _logger.error("%s is damaged and left out: %s", path, first)
