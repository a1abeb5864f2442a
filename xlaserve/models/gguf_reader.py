"""The container format of a GGUF file: metadata and where each tensor lies. It knows nothing of models.

The reader of the `gguf` package makes an array per metadata value, which takes many seconds for a large vocabulary.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.checkpoint import DOWNLOAD_AGAIN, is_git_lfs_pointer

_SCALARS = {
    gguf.GGUFValueType.UINT8: "B",
    gguf.GGUFValueType.INT8: "b",
    gguf.GGUFValueType.UINT16: "H",
    gguf.GGUFValueType.INT16: "h",
    gguf.GGUFValueType.UINT32: "I",
    gguf.GGUFValueType.INT32: "i",
    gguf.GGUFValueType.FLOAT32: "f",
    gguf.GGUFValueType.BOOL: "?",
    gguf.GGUFValueType.UINT64: "Q",
    gguf.GGUFValueType.INT64: "q",
    gguf.GGUFValueType.FLOAT64: "d",
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_HEADER_BYTES = 24  # magic, version, numbers of tensors and of metadata entries
_MAX_DIMS = 4  # ggml's own limit
_MIN_TENSOR_BYTES = 32  # of a header entry: name's length, number of dimensions, one dimension, type, offset
_MIN_VALUE_BYTES = 13  # of a metadata entry: key's length, type, the smallest value


@dataclass(frozen=True)
class GGUFTensor:
    shape: tuple[int, ...]  # slowest axis first, as numpy has it
    type: gguf.GGMLQuantizationType
    offset: int  # bytes from the start of the file
    num_bytes: int


@dataclass(frozen=True)
class GGUFHeader:
    metadata: dict[str, Any]  # lists of strings are lists, lists of numbers are numpy arrays
    tensors: dict[str, GGUFTensor]


def read_header(file: Path) -> GGUFHeader:
    """Reads and checks all but the tensors' data. Raises CheckpointError naming the file and what is wrong."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(32)
            _check_magic(file, head)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(file, data).header()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error


def _check_magic(file: Path, head: bytes) -> None:
    if is_git_lfs_pointer(head):
        raise CheckpointError(f"{file}: is a Git LFS pointer, not the model; run `git lfs pull`, or {DOWNLOAD_AGAIN}")
    if head[:4] != b"GGUF":
        raise CheckpointError(f"{file}: starts with {head[:4]!r}; expected a GGUF file (b'GGUF'); {DOWNLOAD_AGAIN}")
    if len(head) < _HEADER_BYTES:
        raise CheckpointError(f"{file}: is cut short: {len(head)} bytes, inside its header; {DOWNLOAD_AGAIN}")
    version = _U32.unpack_from(head, 4)[0]
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0
        found = "written for big-endian machines" if swapped else f"of GGUF version {version}"
        raise CheckpointError(f"{file}: is {found}; expected version 2 or 3, little-endian")


class _Parser:
    """A cursor over the file; every read is checked against the file's size before anything is allocated."""

    def __init__(self, file: Path, data: mmap.mmap):
        self.file = file
        self.data = data
        self.size = len(data)
        self.at = 8  # after magic and version

    def header(self) -> GGUFHeader:
        num_tensors, num_values = self.unsigned(_U64), self.unsigned(_U64)
        if num_tensors * _MIN_TENSOR_BYTES + num_values * _MIN_VALUE_BYTES > self.size:
            raise self.error(
                f"says it has {num_tensors} tensors and {num_values} metadata values in {self.size:,} bytes"
            )
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self.name("a metadata key")
            if key in metadata:
                raise self.error(f"has the metadata key {key} twice")
            metadata[key] = self.value(key, self.unsigned(_U32))
        entries = [self.tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.error(f"general.alignment is {alignment!r}; expected a power of two")
        base = -(-self.at // alignment) * alignment
        tensors = {name: self.tensor(name, dims, kind, base + offset) for name, dims, kind, offset in entries}
        if len(tensors) < num_tensors:
            raise self.error("has two tensors of one name")
        return GGUFHeader(metadata, tensors)

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.name("a tensor's name")
        num_dims = self.unsigned(_U32)
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self.error(f"{name}: has {num_dims} dimensions; expected 1 to {_MAX_DIMS}")
        dims = tuple(self.unsigned(_U64) for _ in range(num_dims))
        return name, dims, self.unsigned(_U32), self.unsigned(_U64)

    def tensor(self, name: str, dims: tuple[int, ...], kind: int, offset: int) -> GGUFTensor:
        try:
            tensor_type = gguf.GGMLQuantizationType(kind)
        except ValueError as error:
            raise self.error(f"{name}: has the unknown tensor type {kind}") from error
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
        if dims and dims[0] % block_values:
            raise self.error(f"{name}: has rows of {dims[0]}; {tensor_type.name} needs a multiple of {block_values}")
        num_bytes = prod(dims) // block_values * block_bytes
        if offset + num_bytes > self.size:
            raise self.error(
                f"is cut short: {self.size:,} bytes, but {name} ends at {offset + num_bytes:,}; {DOWNLOAD_AGAIN}"
            )
        return GGUFTensor(dims[::-1], tensor_type, offset, num_bytes)

    def value(self, key: str, kind: int) -> Any:
        if kind in _SCALARS:
            scalar = struct.Struct("<" + _SCALARS[gguf.GGUFValueType(kind)])
            return scalar.unpack_from(self.data, self.skip(scalar.size))[0]
        if kind == gguf.GGUFValueType.STRING:
            return self.strings(1)[0]
        if kind != gguf.GGUFValueType.ARRAY:
            raise self.error(f"{key}: has the unknown value type {kind}")
        item_kind, count = self.unsigned(_U32), self.unsigned(_U64)
        if item_kind == gguf.GGUFValueType.STRING:
            return self.strings(count)
        if item_kind not in _SCALARS:
            raise self.error(f"{key}: is a list of value type {item_kind}; expected numbers or strings")
        dtype = np.dtype("<" + _SCALARS[gguf.GGUFValueType(item_kind)]) if item_kind != 7 else np.dtype(np.bool_)
        start = self.skip(count * dtype.itemsize)
        return np.frombuffer(self.data[start : self.at], dtype)

    def strings(self, count: int) -> list[str]:
        """`count` strings, each a length and that many bytes of UTF-8 (a vocabulary may hold broken ones)."""
        result = []
        data, size, unpack, at = self.data, self.size, _U64.unpack_from, self.at
        for _ in range(count):
            end = at + 8
            if end > size:
                raise self.cut()
            end += unpack(data, at)[0]
            if end > size:
                raise self.cut()
            result.append(data[at + 8 : end].decode("utf-8", "replace"))
            at = end
        self.at = at
        return result

    def name(self, what: str) -> str:
        name = self.strings(1)[0]
        if not name or not name.isascii() or not name.isprintable():
            raise self.error(f"{what} is {name!r:.80}; expected printable ASCII")
        return name

    def unsigned(self, kind: struct.Struct) -> int:
        return kind.unpack_from(self.data, self.skip(kind.size))[0]

    def skip(self, num_bytes: int) -> int:
        """Where the next `num_bytes` start; the cursor moves behind them."""
        start = self.at
        if start + num_bytes > self.size:
            raise self.cut()
        self.at = start + num_bytes
        return start

    def cut(self) -> CheckpointError:
        return self.error(
            f"its header does not fit in its {self.size:,} bytes: cut short or damaged from byte {self.at:,} on; "
            f"{DOWNLOAD_AGAIN}"
        )

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {problem}")
