"""A Hugging Face folder whose weights are stored quantised, with its tensors under the plain model's names."""

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.checkpoint import TensorInfo
from xlaserve.models.quantized_config import Scheme, StoredQuantization
from xlaserve.models.quantized_decoding import (
    Decoded,
    awq_values,
    gptq_values,
    gptq_zeros,
    kernel_group,
    packed_values,
    packed_zeros,
)
from xlaserve.models.safetensors_folder import SafetensorsFolder

_MAX_SHOWN = 10
_WORD_PARTS = {"awq": ".qweight", "gptq": ".qweight", "packed": ".weight_packed"}
# Scales of what is quantised while the model runs. They are not needed: activations, keys and values get a scale of
# their own per token, which is finer.
_SUPERSEDED = re.compile(r"(?P<module>.*)\.input_scale|.*\.self_attn(\.[kv]_proj)?\.[kv]_scale")


class QuantizedCheckpoint:
    """`folder`, opened, as `quantization` says it is stored: every header is checked. Raises CheckpointError."""

    gguf_metadata: dict[str, Any] | None = None

    def __init__(self, folder: SafetensorsFolder, quantization: StoredQuantization):
        self._folder = folder
        self.source, self.where, self.config = folder.source, folder.where, folder.config
        self.generation_config = folder.generation_config
        self.folder: Path | None = folder.folder
        self.method = quantization.method
        self.schemes: dict[str, Scheme] = {}  # of weights that are stored quantised, by "...up_proj.weight"
        self.tensors: dict[str, TensorInfo] = {}
        unused, problems = dict(folder.tensors), []
        for module in sorted(_modules(folder.tensors)):
            scheme = quantization.scheme_of(module)
            if module.endswith("embed_tokens"):
                problems.append(f"{module}: embeddings that are quantised are not supported")
            elif scheme is None:
                problems.append(f"{module}: is quantised, but quantization_config leaves it out")
            elif found := self._assemble(module, scheme, unused, problems):
                self.schemes[f"{module}.weight"], self.tensors[f"{module}.weight"] = scheme, found
        self.tensors |= {name: info for name, info in unused.items() if not self._is_superseded(name)}
        if not self.schemes and not problems:
            problems.append(f"holds no weights as {self.method} stores them")
        problems += [f"{name}: {problem}" for name, problem in self._misfits(quantization)]
        if problems:
            more = [f"and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
            listing = "\n  ".join(problems[:_MAX_SHOWN] + more)
            raise CheckpointError(f"{self.where}: the weights do not fit quantization_config:\n  {listing}")

    def read(self, name: str, dtype: np.dtype | None = None) -> np.ndarray:
        """As any checkpoint's; of a quantised weight what it stands for, float32 if no dtype is asked for."""
        if name not in self.schemes:
            return self._folder.read(name, dtype)
        return self.decode(name).dequantized.astype(dtype or np.float32, copy=False)

    def scale_dtype(self, name: str) -> np.dtype:
        """Of a weight of `schemes`, as `decode` gives its scales."""
        scheme, module = self.schemes[name], name.removesuffix(".weight")
        stored = self._folder.tensors[f"{module}.{'weight_scale' if scheme.storage == 'packed' else 'scales'}"]
        return np.dtype(ml_dtypes.bfloat16 if stored.dtype == "BF16" else np.float32)

    def decode(self, name: str) -> Decoded:
        """A weight of `schemes`. Raises CheckpointError for contents that contradict the config, or each other."""
        module, scheme, shape = name.removesuffix(".weight"), self.schemes[name], self.tensors[name].shape
        try:
            return self._decode(module, scheme, shape)
        except ValueError as error:
            raise CheckpointError(f"{self.tensors[name].file}: {module}: {error}") from None

    def _decode(self, module: str, scheme: Scheme, shape: tuple[int, ...]) -> Decoded:
        def part(suffix: str) -> np.ndarray:
            return self._folder.read(f"{module}.{suffix}")

        if scheme.storage == "plain":
            scales = np.broadcast_to(part("weight_scale").reshape(-1, 1), (shape[0], 1))
            return Decoded(part("weight"), scales.astype(np.float32))
        if scheme.storage == "packed":
            if part("weight_shape").tolist() != list(shape):
                raise ValueError(f"weight_shape is {part('weight_shape').tolist()}; expected {list(shape)}")
            values = packed_values(part("weight_packed"), scheme.bits, shape[1])
            zeros = packed_zeros(part("weight_zero_point"), shape[0]) if scheme.has_zeros else None
            return Decoded(values, _scales(part("weight_scale")), zeros)
        scales = _scales(part("scales").T)
        if scheme.storage == "awq":
            return Decoded(awq_values(part("qweight")), scales, awq_values(part("qzeros")))
        self._check_order(module, shape[1], scales.shape[1])
        zeros = gptq_zeros(part("qzeros"), scheme.zero_offset)
        if not scheme.has_zeros and (zeros != 8).any():
            raise ValueError("qzeros are not all 8, but quantization_config.sym is true")
        return Decoded(gptq_values(part("qweight")), scales, zeros if scheme.has_zeros else None)

    def _check_order(self, module: str, num_inputs: int, groups: int) -> None:
        """Kernels take groups of neighbours; with desc_act GPTQ may have chosen others."""
        name = f"{module}.g_idx"
        if name in self._folder.tensors:
            order = self._folder.read(name)
            if (order != np.arange(num_inputs) // (num_inputs // groups)).any():
                raise ValueError("g_idx: groups are not of neighbouring inputs (quantization_config.desc_act)")

    def _assemble(
        self, module: str, scheme: Scheme, unused: dict[str, TensorInfo], problems: list[str]
    ) -> TensorInfo | None:
        """The weight [out, in] that a module's parts are; takes them out of `unused`."""
        values_name = module + _WORD_PARTS.get(scheme.storage, ".weight")
        values = unused.get(values_name)
        if values is None or len(values.shape) != 2 or prod(values.shape) == 0:
            found = "is missing" if values is None else f"has shape {list(values.shape)}"
            problems.append(f"{values_name}: {found}; expected a matrix, as quantization_config says it is stored")
            return None
        shape = _shape(values.shape, scheme)
        group = scheme.group_size or shape[1]
        if shape[1] % group or (scheme.bits == 4 and kernel_group(shape[1], group) is None):
            problems.append(f"{module}: has {shape[1]} inputs; expected a multiple of group_size {group}, and of 32")
            return None
        for suffix, (wanted, dtypes, required) in _parts(shape, shape[1] // group, scheme).items():
            info = unused.pop(f"{module}.{suffix}", None)
            if info is None and required:
                problems.append(f"{module}.{suffix}: missing; expected shape {list(wanted[0])}")
            elif info is not None and (info.shape not in wanted or info.dtype not in dtypes):
                found = f"{info.dtype} {list(info.shape)} in {info.file.name}"
                problems.append(f"{module}.{suffix}: {found}; expected {' or '.join(dtypes)} {list(wanted[0])}")
        return TensorInfo(shape, values.dtype, values.file)

    def _is_superseded(self, name: str) -> bool:
        found = _SUPERSEDED.fullmatch(name)
        return found is not None and (found["module"] is None or f"{found['module']}.weight" in self.schemes)

    def _misfits(self, quantization: StoredQuantization) -> Iterator[tuple[str, str]]:
        """Of compressed-tensors, which tells of every module whether it is quantised."""
        if quantization.method != "compressed-tensors":
            return
        for name, info in self.tensors.items():
            is_linear = len(info.shape) == 2 and name.endswith(".weight") and not name.endswith("embed_tokens.weight")
            if is_linear and name not in self.schemes and quantization.scheme_of(name.removesuffix(".weight")):
                yield name, "is not quantised, but quantization_config.config_groups says so"


_FLOATS, _INDICES = ("F16", "BF16", "F32"), ("I32", "I64")


def _parts(shape: tuple[int, ...], groups: int, scheme: Scheme) -> dict[str, tuple[tuple, tuple[str, ...], bool]]:
    """By suffix: the shapes and dtypes that it may have, and whether it must be there."""
    num_outputs, num_inputs = shape
    if scheme.storage == "plain":
        values = "I8" if scheme.mode.startswith("w8") else "F8_E4M3"
        per_output = ((num_outputs, 1), (num_outputs,), (1,), (), (1, 1))
        return {"weight": ((shape,), (values,), True), "weight_scale": (per_output, _FLOATS, True)}
    if scheme.storage == "packed":
        words = (num_outputs, num_inputs * scheme.bits // 32)
        parts = {
            "weight_packed": ((words,), ("I32",), True),
            "weight_scale": (((num_outputs, groups),), _FLOATS, True),
            "weight_shape": (((2,),), _INDICES, True),
        }
        zeros = {"weight_zero_point": (((-(-num_outputs // 8), groups),), ("I32",), True)}
        return parts | (zeros if scheme.has_zeros else {})
    words = (num_inputs, num_outputs // 8) if scheme.storage == "awq" else (num_inputs // 8, num_outputs)
    parts = {
        "qweight": ((words,), ("I32",), True),
        "qzeros": (((groups, num_outputs // 8),), ("I32",), True),
        "scales": (((groups, num_outputs),), _FLOATS, True),
    }
    return parts | ({"g_idx": (((num_inputs,),), _INDICES, False)} if scheme.storage == "gptq" else {})


def _shape(words: tuple[int, ...], scheme: Scheme) -> tuple[int, int]:
    """[out, in] of the weight whose values are stored so."""
    rows, columns = words
    match scheme.storage:
        case "awq":
            return 8 * columns, rows
        case "gptq":
            return columns, 8 * rows
        case "packed":
            return rows, columns * 32 // scheme.bits
        case _:
            return rows, columns


def _modules(tensors: Mapping[str, TensorInfo]) -> set[str]:
    """Those with a quantised weight."""
    suffixes = tuple(set(_WORD_PARTS.values()))
    words = {name.rpartition(".")[0] for name in tensors if name.endswith(suffixes)}
    return words | {
        name.removesuffix(".weight")
        for name, info in tensors.items()
        if name.endswith(".weight") and info.dtype in ("I8", "F8_E4M3")
    }


def _scales(stored: np.ndarray) -> np.ndarray:
    """bfloat16 as it is, else float32: float16 has numbers that bfloat16 has not."""
    return stored if stored.dtype == ml_dtypes.bfloat16 else stored.astype(np.float32)
