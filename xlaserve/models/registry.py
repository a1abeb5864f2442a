"""Family -> the model's functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from xlaserve_kernels.paged_attention import KVPool

from xlaserve.layers.linear import project
from xlaserve.layers.quantized import QuantizedArray
from xlaserve.models import gemma3, llama, qwen3
from xlaserve.models.config import ModelConfig


@dataclass(frozen=True)
class Family:
    param_specs: Callable[[ModelConfig], Any]
    forward: Callable[..., tuple[Array, tuple[KVPool, ...]]]  # (params, config, plan, kv_caches, batch)


FAMILIES = {
    "llama": Family(llama.param_specs, llama.forward),
    "qwen3": Family(qwen3.param_specs, qwen3.forward),
    "gemma3": Family(gemma3.param_specs, gemma3.forward),
}


def head_weight(params: Any) -> Array | QuantizedArray:
    """The output projection [V, D]: the embeddings when they are tied."""
    return (params.model.embed_tokens if params.lm_head is None else params.lm_head).weight


def compute_logits(
    weight: Array | QuantizedArray, config: ModelConfig, hidden: Array, axis: str | None = None
) -> Array:
    """hidden [S, D], normed; weight [V, D] -> float32 logits [S, V].

    axis: of the mesh, in a program that each device runs with its part of the weight: every one gets all logits.
    """
    logits = project(hidden, weight)
    if axis is not None:
        logits = lax.all_gather(logits, axis, axis=1, tiled=True)
    if config.final_logit_softcap is not None:
        logits = config.final_logit_softcap * jnp.tanh(logits / config.final_logit_softcap)
    return logits
