"""A GGUF file as a checkpoint: tensors under Hugging Face names, dequantised, with llama.cpp's conversions undone."""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.checkpoint import TensorInfo, read_array
from xlaserve.models.gguf_names import MODEL_TYPES, hf_config, hf_name, llama3_rope, sampling_defaults
from xlaserve.models.gguf_reader import GGUFTensor, read_header

_Type = gguf.GGMLQuantizationType
_PLAIN = {
    _Type.F32: np.dtype(np.float32),
    _Type.F16: np.dtype(np.float16),
    _Type.BF16: np.dtype(ml_dtypes.bfloat16),
}
_ROPE_FREQS = "rope_freqs.weight"


class GGUFFile:
    """Opens the file and checks its header; weights are read on demand. Raises CheckpointError."""

    folder: Path | None = None

    def __init__(self, file: Path, source: str | None = None):
        self.source = source or str(file)
        self.where = str(file)
        self._file = file
        header = read_header(file)
        self.gguf_metadata: dict[str, Any] | None = header.metadata
        if header.metadata.get("split.count", 1) > 1:
            raise CheckpointError(
                f"{file}: is one of {header.metadata['split.count']} parts; join them: llama-gguf-split --merge"
            )
        _check_types(file, header.tensors)
        self.config = hf_config(header.metadata, header.tensors, self.where)
        self.generation_config = sampling_defaults(header.metadata)
        self._architecture = header.metadata["general.architecture"]
        rope_freqs = header.tensors.pop(_ROPE_FREQS, None) if self._architecture == "llama" else None
        if rope_freqs:
            divisors = self._read(_ROPE_FREQS, rope_freqs, np.dtype(np.float32))
            self.config["rope_parameters"] = llama3_rope(divisors, self.config, self.where)
        self._stored = {self._name(name): tensor for name, tensor in header.tensors.items()}
        self.tensors = {name: TensorInfo(t.shape, t.type.name, file) for name, t in self._stored.items()}
        self.config["dtype"] = _checkpoint_dtype(self._stored.values())

    def read(self, name: str, dtype: np.dtype | None = None) -> np.ndarray:
        tensor = self._stored[name]
        array = self._read(name, tensor, dtype or _PLAIN.get(tensor.type, np.dtype(np.float32)))
        if self._architecture == "llama" and ".self_attn.q_proj." in name:
            return _split_pairs(array, self.config["num_attention_heads"])
        if self._architecture == "llama" and ".self_attn.k_proj." in name:
            return _split_pairs(array, self.config["num_key_value_heads"])
        return array

    def _read(self, name: str, tensor: GGUFTensor, dtype: np.dtype) -> np.ndarray:
        # llama.cpp stores 1 + w for Gemma's norms; the 1 is taken off before rounding to `dtype`.
        offset = 1.0 if self._architecture == "gemma3" and name.endswith("norm.weight") else 0.0
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
        return read_array(
            self._file,
            tensor.offset,
            tensor.shape,
            dtype,
            decode=partial(_decode, tensor_type=tensor.type, offset=offset),
            block_bytes=block_bytes,
            block_values=block_values,
        )

    def _name(self, name: str) -> str:
        found = hf_name(self._architecture, name)
        if found is None:
            raise CheckpointError(f"{self.where}: {name}: no {MODEL_TYPES[self._architecture]} model has such a tensor")
        return found


def _decode(raw: np.ndarray, tensor_type: _Type, offset: float) -> np.ndarray:
    """Whole blocks as uint8 -> their values."""
    plain = _PLAIN.get(tensor_type)
    values = raw.view(plain) if plain else gguf.dequantize(raw[None], tensor_type)[0]
    return values.astype(np.float32) - offset if offset else values


def _split_pairs(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Each head's rows in llama.cpp's order for its rotary pairs (0, half, 1, half + 1, ...) -> in Hugging Face's."""
    pairs = array.reshape(num_heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _check_types(file: Path, tensors: dict[str, GGUFTensor]) -> None:
    """Each quantisation is tried on one block: the `gguf` library cannot say otherwise which ones it dequantises."""
    by_type = {tensor.type: name for name, tensor in reversed(tensors.items())}
    for tensor_type, name in by_type.items():
        try:
            _decode(np.zeros(gguf.GGML_QUANT_SIZES[tensor_type][1], np.uint8), tensor_type, 0.0)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{file}: {name}: is stored as {tensor_type.name}; expected a type that the gguf package dequantises"
            ) from error


def _checkpoint_dtype(tensors: Iterable[GGUFTensor]) -> str:
    """The precision most of the matrices call for: quantised values need no more than bfloat16."""
    sizes = Counter[_Type]()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.type] += tensor.num_bytes
    most = sizes.most_common(1)[0][0]
    return {_Type.F32: "float32", _Type.F16: "float16"}.get(most, "bfloat16")
