"""The header of a safetensors file, read and checked here so that errors say what is wrong with which file and tensor.

Layout: the header's length (8 bytes, little-endian), a JSON object of tensors, then the data its offsets point into.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.checkpoint import DOWNLOAD_AGAIN, is_git_lfs_pointer

_MAX_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class StoredTensor:
    shape: tuple[int, ...]
    dtype: str  # one of the caller's names
    file: Path
    offset: int  # bytes from the start of the file
    num_bytes: int


def read_header(file: Path, dtypes: Mapping[str, np.dtype]) -> dict[str, StoredTensor]:
    """The tensors of `file`, whose dtypes must be among `dtypes`. Raises CheckpointError."""
    try:
        with open(file, "rb") as stream:
            actual = os.fstat(stream.fileno()).st_size
            head = stream.read(8)
            length = int.from_bytes(head, "little")
            if actual < 8 or is_git_lfs_pointer(head + stream.read(24)):
                raise CheckpointError(f"{file}: {_no_weights(head, actual)}")
            if length > min(actual - 8, _MAX_HEADER):
                raise CheckpointError(
                    f"{file}: its header says to be {length:,} bytes long, but the file has {actual:,}: "
                    f"cut short or not a safetensors file; {DOWNLOAD_AGAIN}"
                )
            stream.seek(8)
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: its header is not valid JSON ({error}); {DOWNLOAD_AGAIN}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: its header is a JSON {type(header).__name__}; expected an object of tensors")
    header.pop("__metadata__", None)
    tensors = {name: _stored_tensor(file, name, entry, 8 + length, dtypes) for name, entry in header.items()}
    _check_size(file, tensors, 8 + length, actual)
    return tensors


def _no_weights(head: bytes, actual: int) -> str:
    if actual < 8:
        return f"has {actual} bytes; expected a safetensors file; {DOWNLOAD_AGAIN}"
    return "is a Git LFS pointer, not the weights; run `git lfs pull` in its folder, or download the file again"


def _stored_tensor(file: Path, name: str, entry: Any, base: int, dtypes: Mapping[str, np.dtype]) -> StoredTensor:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{file}: {name}: its header entry is {entry!r:.80}; expected an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise CheckpointError(f"{file}: {name}: dtype is {dtype!r}; expected one of {', '.join(dtypes)}")
    if not _are_sizes(shape):
        raise CheckpointError(f"{file}: {name}: shape is {shape!r:.80}; expected a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{file}: {name}: data_offsets is {offsets!r:.80}; expected [begin, end]")
    expected = prod(shape) * dtypes[dtype].itemsize
    if offsets[1] - offsets[0] != expected:
        raise CheckpointError(
            f"{file}: {name}: holds {offsets[1] - offsets[0]:,} bytes; expected {expected:,} for {dtype} {shape}"
        )
    return StoredTensor(tuple(shape), dtype, file, base + offsets[0], expected)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_size(file: Path, tensors: Mapping[str, StoredTensor], base: int, actual: int) -> None:
    expected = max((stored.offset + stored.num_bytes for stored in tensors.values()), default=base)
    if actual == expected:
        return
    if actual > expected:
        raise CheckpointError(f"{file}: has {actual:,} bytes; expected {expected:,}; {DOWNLOAD_AGAIN}")
    first_cut = min((s.offset, name) for name, s in tensors.items() if s.offset + s.num_bytes > actual)[1]
    raise CheckpointError(
        f"{file}: is cut short: {actual:,} bytes, expected {expected:,}; "
        f"the first tensor that is not whole is {first_cut}; {DOWNLOAD_AGAIN}"
    )
