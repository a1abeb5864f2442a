"""Fills a model's parameters from a checkpoint: all names and shapes are checked first, then tensors stream singly."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from xlaserve_kernels.host_quantization import quantize_on_host
from xlaserve_kernels.quantized_matmul import interleaved

from xlaserve.errors import CheckpointError
from xlaserve.layers.params import ArraySpec, map_specs, named_specs, spec_bytes
from xlaserve.layers.quantized import QuantizedArray, is_stored_weight, plain_specs
from xlaserve.models.checkpoint import Checkpoint
from xlaserve.models.config import ModelConfig
from xlaserve.models.quantized_checkpoint import QuantizedCheckpoint
from xlaserve.models.quantized_decoding import kernel_parts
from xlaserve.models.random_checkpoint import RandomCheckpoint

_MAX_SHOWN = 10
_HEAD, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def load_params(
    specs: Any,
    checkpoint: Checkpoint,
    *,
    dtype: np.dtype,
    place: Callable[[np.ndarray, ArraySpec], jax.Array],
    on_progress: Callable[[int, int, str], None],
) -> Any:
    """The tree of `specs` with each leaf read as `dtype` and put on the devices by `place`; what is to be quantised, is
    that on the host.

    `on_progress(bytes_done, bytes_total, name)` is called after each tensor, in bytes as placed. Host memory holds one
    tensor at a time. Raises CheckpointError naming every tensor that is missing, misshapen or not used.
    """
    plain = plain_specs(specs)
    if isinstance(checkpoint, RandomCheckpoint):
        checkpoint = checkpoint.with_specs(plain)
    check_tensors(plain, checkpoint)
    total, done = spec_bytes(specs, dtype), 0

    def load(name: str, spec: ArraySpec | QuantizedArray) -> jax.Array | QuantizedArray:
        nonlocal done
        if isinstance(spec, QuantizedArray):
            placed = _load_quantized(checkpoint, name, spec, place)
        else:
            placed = place(checkpoint.read(name, dtype), spec)
        done += spec_bytes(spec, dtype)
        on_progress(done, total, name)
        return placed

    return map_specs(load, specs, is_stored_weight)


def _load_quantized(
    checkpoint: Checkpoint, name: str, spec: QuantizedArray, place: Callable[[np.ndarray, ArraySpec], jax.Array]
) -> QuantizedArray:
    """From the stored precision, not rounded in between; as it is, where the checkpoint has quantised it."""
    parts: Any = spec.weight
    if isinstance(checkpoint, QuantizedCheckpoint):
        values, scales, zeros = kernel_parts(checkpoint.decode(name), parts.mode, parts.group_size)
    else:
        values, scales = quantize_on_host(checkpoint.read(name), parts.values.dtype)
        zeros = None
    if len(parts.values.shape) == 3:
        values = interleaved(values)
    placed = {"values": place(values, parts.values), "scales": place(scales, parts.scales)}
    if zeros is not None:
        placed["zeros"] = place(zeros, parts.zeros)
    return dataclasses.replace(spec, weight=dataclasses.replace(parts, **placed))


def check_tensors(specs: Any, checkpoint: Checkpoint) -> None:
    """Compares the checkpoint's headers with `specs`, both ways; raises one CheckpointError for all differences."""
    wanted = dict(named_specs(specs))
    stored = checkpoint.tensors
    problems = [
        f"{name}: missing; expected shape {list(spec.shape)}" for name, spec in wanted.items() if name not in stored
    ]
    problems += [
        f"{name}: shape {list(info.shape)} in {info.file.name}; expected {list(wanted[name].shape)}"
        for name, info in stored.items()
        if name in wanted and info.shape != wanted[name].shape
    ]
    problems += [
        f"{name}: in {info.file.name} with shape {list(info.shape)}, but the model has no such parameter"
        for name, info in stored.items()
        if name not in wanted and not _may_be_unused(name)
    ]
    if problems:
        more = [f"and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
        listing = "\n  ".join(problems[:_MAX_SHOWN] + more)
        raise CheckpointError(f"{checkpoint.where}: the weights do not fit this configuration:\n  {listing}")


def untie_differing_head(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """`config`, untied if the checkpoint stores a head that is not the embeddings it is tied to.

    transformers does the same. For a checkpoint that `check_tensors` has passed; reads both tensors if there are two.
    """
    if not config.tie_word_embeddings or _HEAD not in checkpoint.tensors:
        return config
    if np.array_equal(checkpoint.read(_HEAD), checkpoint.read(_EMBEDDINGS)):
        return config
    return dataclasses.replace(config, tie_word_embeddings=False)


def _may_be_unused(name: str) -> bool:
    """A stored head that the config ties to the embeddings (an untied one is wanted), and tables we compute."""
    return name == _HEAD or name.endswith(".rotary_emb.inv_freq")
