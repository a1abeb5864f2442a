"""Derives what the config leaves open, from the model and the machine; tells each value with its reason."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh
from xlaserve_kernels import backend as kernel_backend

from xlaserve.config import Config
from xlaserve.engine.reporter import Reporter
from xlaserve.errors import ConfigError
from xlaserve.models.config import ModelConfig
from xlaserve.models.kv_spec import kv_specs
from xlaserve.runner.buckets import make_buckets
from xlaserve.runner.dtype import choose_dtype, named_dtype
from xlaserve.runner.kv_cache import block_bytes, make_layouts, size_pool
from xlaserve.runner.programs import ProgramShapes

# (max_num_seqs, max_num_batched_tokens). On a CPU a step of 256 prompt tokens already stalls the others for a second.
_CPU_LIMITS = (16, 256)
_ACCELERATOR_LIMITS = (128, 2048)


@dataclass(frozen=True)
class Settings:
    shapes: ProgramShapes
    max_model_len: int
    max_num_batched_tokens: int


def resolve_settings(config: Config, model: ModelConfig, num_weights: int, mesh: Mesh, reporter: Reporter) -> Settings:
    """Raises ConfigError naming the key, the value and what is allowed."""
    device = mesh.devices.flat[0]
    reporter.info("device", device.device_kind, f"jax {jax.__version__}, platform {device.platform}")
    backend = _resolve_backend(config.kernels.attention_backend, device.platform)
    reporter.info("attention_backend", backend, f"kernels.attention_backend: {config.kernels.attention_backend}")
    dtype, reason = choose_dtype(config.model.dtype, model, device.platform)
    reporter.info("dtype", dtype.name, reason)
    kv_dtype, reason = dtype, "the model's"
    if config.cache.dtype != "auto":
        kv_dtype, reason = named_dtype(config.cache.dtype), "cache.dtype"
    reporter.info("cache.dtype", kv_dtype.name, reason)

    limits = _CPU_LIMITS if device.platform == "cpu" else _ACCELERATOR_LIMITS
    asked = config.scheduler
    max_num_seqs, reason = _given_or(asked.max_num_seqs, limits[0], device.platform)
    reporter.info("max_num_seqs", max_num_seqs, reason)
    max_num_batched_tokens, reason = _given_or(asked.max_num_batched_tokens, limits[1], device.platform)
    reporter.info("max_num_batched_tokens", max_num_batched_tokens, reason)

    block_size = config.cache.block_size
    max_model_len, length_reason = _max_model_len(config, model)
    specs = kv_specs(model)
    try:
        bytes_per_block = block_bytes(specs, make_layouts(specs, backend, block_size, kv_dtype))
    except ValueError as error:
        raise ConfigError(f"cache.block_size, cache.dtype, or the model's heads: {error}") from error
    pool = size_pool(
        config.cache,
        bytes_per_block,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        free_memory=_free_memory(device, num_weights * dtype.itemsize),
    )
    capacity = pool.tokens(block_size)
    if config.model.max_model_len is None and capacity < max_model_len:
        max_model_len, length_reason = capacity, "what the KV pool holds; raise cache.memory for more"
    reporter.info("max_model_len", max_model_len, length_reason)
    mebibytes = pool.num_blocks * bytes_per_block / 2**20
    size = f"{capacity} tokens in {pool.num_blocks} blocks of {block_size}, {mebibytes:.0f} MiB"
    reporter.info("KV pool", size, pool.reason)

    buckets = make_buckets(max_num_seqs, max_num_batched_tokens)
    reporter.info("token buckets", " ".join(map(str, buckets.tokens)), "from the two limits above")
    shapes = ProgramShapes(
        config=model,
        buckets=buckets,
        max_num_seqs=max_num_seqs,
        table_width=-(-max_model_len // block_size),
        block_size=block_size,
        num_blocks=pool.num_blocks,
        backend=backend,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    return Settings(shapes, max_model_len, max_num_batched_tokens)


def _free_memory(device: Any, weight_bytes: int) -> int | None:
    """Bytes left on the device once the weights are there; None where it uses the machine's own memory."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if not stats or "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0) - weight_bytes


def _resolve_backend(name: str, platform: str) -> str:
    try:
        return kernel_backend.resolve(name, platform)
    except ValueError as error:
        raise ConfigError(f"kernels.attention_backend: {error}") from error


def _given_or(value: int | None, default: int, platform: str) -> tuple[int, str]:
    return (value, "as configured") if value is not None else (default, f"default on {platform}")


def _max_model_len(config: Config, model: ModelConfig) -> tuple[int, str]:
    longest = model.max_position_embeddings
    asked = config.model.max_model_len
    if asked is None:
        return longest, "the model's context"
    if asked > longest:
        raise ConfigError(f"model.max_model_len is {asked}: the model's context is {longest} tokens at most")
    return asked, "as configured"
