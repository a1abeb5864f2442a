"""Derives what the config leaves open, from the model and the machine; tells each value with its reason.

The KV pools' sizes are `sizing.py`'s.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from xlaserve_kernels import backend as kernel_backend

from xlaserve.config import Config
from xlaserve.engine.machine import Machine
from xlaserve.engine.quantization import StoredFormats, choose_quantization
from xlaserve.engine.reporter import Reporter
from xlaserve.errors import ConfigError
from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import ModelConfig
from xlaserve.models.kv_spec import kv_specs
from xlaserve.runner.buckets import Buckets, make_buckets
from xlaserve.runner.dtype import choose_dtype, named_dtype
from xlaserve.runner.kv_cache import make_layouts
from xlaserve.runner.programs import ProgramShapes

# (max_num_seqs, max_num_batched_tokens). On a CPU a step of 256 prompt tokens already stalls the others for a second.
_CPU_LIMITS = (16, 256)
_ACCELERATOR_LIMITS = (128, 2048)


@dataclass(frozen=True)
class Settings:
    """All but what depends on the memory."""

    model: ModelConfig
    backend: str
    dtype: np.dtype
    kv_dtype: np.dtype
    max_num_seqs: int
    max_num_batched_tokens: int
    buckets: Buckets
    block_size: int  # tokens
    max_model_len: int  # as configured, else the model's own: memory may cap that
    length_reason: str
    processed_logprobs: bool = False
    num_devices: int = 1  # that share each layer
    quantization: Quantization | None = None  # of the weights
    num_speculative_tokens: int = 0  # drafts of a request in a step, at most

    def shapes(self, num_blocks: tuple[int, ...], max_model_len: int) -> ProgramShapes:
        """Of the programs, with these pools for requests of this length."""
        return ProgramShapes(
            config=self.model,
            buckets=self.buckets,
            max_num_seqs=self.max_num_seqs,
            table_width=-(-max_model_len // self.block_size),
            block_size=self.block_size,
            num_blocks=num_blocks,
            backend=self.backend,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            processed_logprobs=self.processed_logprobs,
            num_devices=self.num_devices,
            quantization=self.quantization,
            num_speculative_tokens=self.num_speculative_tokens,
        )

    def stored(self, specs: Any, mesh: Mesh | None = None) -> Any:
        """The tree of specs as the weights are kept on the devices: `Quantization.stored`."""
        return specs if self.quantization is None else self.quantization.stored(specs, self.dtype, mesh)


def resolve_settings(
    config: Config, model: ModelConfig, machine: Machine, reporter: Reporter, stored: StoredFormats | None = None
) -> Settings:
    """stored: of a checkpoint whose weights are quantised. Raises ConfigError naming the key, the value and what is
    allowed.
    """
    platform, num_devices = machine.platform, machine.num_devices
    count = f"{num_devices} x " if num_devices > 1 else ""
    reporter.info("device", f"{count}{machine.kind}", f"jax {jax.__version__}, platform {platform}")
    _check_shares(model, num_devices)
    backend = _resolve_backend(config.kernels.attention_backend, platform)
    reporter.info("attention_backend", backend, f"kernels.attention_backend: {config.kernels.attention_backend}")
    quantization, reason = choose_quantization(config.model, model, machine, backend, stored)
    reporter.info("quantization", quantization.name if quantization else "none", reason)
    dtype, reason = choose_dtype(config.model.dtype, model, platform, quantized=quantization is not None)
    reporter.info("dtype", dtype.name, reason)
    kv_dtype, reason = dtype, "the model's"
    if config.cache.dtype != "auto":
        kv_dtype, reason = named_dtype(config.cache.dtype), "cache.dtype"
    reporter.info("cache.dtype", kv_dtype.name, reason)
    block_size = config.cache.block_size
    try:
        make_layouts(kv_specs(model), backend, block_size, kv_dtype, num_devices)
    except ValueError as error:
        raise ConfigError(f"cache.block_size, cache.dtype, or the model's heads: {error}") from error
    max_num_seqs, max_num_batched_tokens = _limits(config, platform, reporter)
    num_drafts = _num_drafts(config, reporter)
    buckets = make_buckets(max_num_seqs, max_num_batched_tokens, num_drafts)
    reporter.info("token buckets", " ".join(map(str, buckets.tokens)), "from the two limits above")
    return Settings(
        model, backend, dtype, kv_dtype, max_num_seqs, max_num_batched_tokens, buckets, block_size,
        *_max_model_len(config, model), config.model.logprobs_mode == "processed", num_devices, quantization,
        num_drafts,
    )  # fmt: skip


def _check_shares(model: ModelConfig, num_devices: int) -> None:
    shared = {
        "kv heads": model.num_kv_heads, "query heads": model.num_heads, "columns of the MLP": model.intermediate_size,
        "tokens of the vocabulary": model.vocab_size,
    }  # fmt: skip
    most = math.gcd(*shared.values())
    for name, number in shared.items():
        if number % num_devices:
            raise ConfigError(
                f"{num_devices} devices cannot share the model's {number} {name} evenly: take a number that divides "
                f"{most}"
            )


def _resolve_backend(name: str, platform: str) -> str:
    try:
        return kernel_backend.resolve(name, platform)
    except ValueError as error:
        raise ConfigError(f"kernels.attention_backend: {error}") from error


def _limits(config: Config, platform: str, reporter: Reporter) -> tuple[int, int]:
    """max_num_seqs and max_num_batched_tokens."""
    asked = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    defaults = _CPU_LIMITS if platform == "cpu" else _ACCELERATOR_LIMITS
    for name, value, default in zip(("max_num_seqs", "max_num_batched_tokens"), asked, defaults, strict=True):
        if value is None:
            reporter.info(name, default, f"default on {platform}")
        else:
            reporter.info(name, value, "as configured")
    seqs, tokens = (default if value is None else value for value, default in zip(asked, defaults, strict=True))
    return seqs, tokens


def _num_drafts(config: Config, reporter: Reporter) -> int:
    found, (least, most) = config.speculative, config.speculative.lookup
    if found.method is not None:
        shown = f"{found.method}, up to {found.num_drafts} drafts of a request, by the last {least} to {most} tokens"
        reporter.info("speculative", shown, f"speculative.method: {found.method}; where it pays")
    return found.num_drafts


def _max_model_len(config: Config, model: ModelConfig) -> tuple[int, str]:
    longest = model.max_position_embeddings
    asked = config.model.max_model_len
    if asked is None:
        return longest, "the model's context"
    if asked > longest:
        raise ConfigError(f"model.max_model_len is {asked}: the model's context is {longest} tokens at most")
    return asked, "as configured"
