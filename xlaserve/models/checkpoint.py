"""What stored weights offer the loader, whatever the format: Hugging Face names, shapes [out, in], streamed reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from xlaserve.errors import CheckpointError

DOWNLOAD_AGAIN = "download the file again"
_CHUNK_VALUES = 2**18  # values decoded at a time: the temporaries stay in the processor's cache


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]
    dtype: str  # as the file names it: F32, BF16, Q4_1, ...
    file: Path


class Checkpoint(Protocol):
    """Names, shapes and meaning of the tensors are those of the Hugging Face model, whatever the file holds."""

    source: str  # what the user named
    where: str  # the file that `config` comes from, for messages
    config: dict[str, Any]  # shaped like Hugging Face's config.json
    generation_config: dict[str, Any]
    folder: Path | None  # a Hugging Face folder with tokenizer files
    gguf_metadata: dict[str, Any] | None

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str, dtype: np.dtype | None = None) -> np.ndarray:
        """The tensor as `dtype`; None means the stored precision (float32 for quantised tensors)."""
        ...


def read_array(
    file: Path,
    offset: int,
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    decode: Callable[[np.ndarray], np.ndarray],
    block_bytes: int,
    block_values: int,
) -> np.ndarray:
    """Reads and converts a tensor a piece at a time, so that it never stands in memory in two precisions.

    `decode` turns uint8 [n * block_bytes] into [n * block_values] values. The file is read, not mapped: the pages of a
    map would count as this process's memory.
    """
    out = np.empty(prod(shape), dtype)
    step = max(1, _CHUNK_VALUES // block_values)
    try:
        with open(file, "rb") as stream:
            stream.seek(offset)
            for first in range(0, out.size, step * block_values):
                values = min(step * block_values, out.size - first)
                raw = np.fromfile(stream, np.uint8, values // block_values * block_bytes)
                if raw.size < values // block_values * block_bytes:
                    raise CheckpointError(f"{file}: became shorter while it was read; {DOWNLOAD_AGAIN}")
                out[first : first + values] = decode(raw)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    return out.reshape(shape)


def is_git_lfs_pointer(head: bytes) -> bool:
    return head.startswith(b"version https://git-lfs")
