"""RMSNorm, in float32 whatever the model's dtype."""

import flax.struct
import jax.numpy as jnp
from jax import Array, lax

from xlaserve.layers.params import ArraySpec


@flax.struct.dataclass
class RMSNorm:
    weight: Array  # [D], or [H] for per-head norms


def norm_spec(dim: int, *, unit_offset: bool = False) -> RMSNorm:
    """`unit_offset`: the stored weight is the distance from 1 (Gemma)."""
    init = "zeros" if unit_offset else "ones"
    return RMSNorm(weight=ArraySpec((dim,), (None,), init=init))  # pyright: ignore[reportArgumentType]


def rms_norm(x: Array, p: RMSNorm, eps: float) -> Array:
    """Llama's order: normalise in float32, round to x's dtype, then scale. x [..., D]."""
    return p.weight * _normalize(x, eps).astype(x.dtype)


def rms_norm_unit_offset(x: Array, p: RMSNorm, eps: float) -> Array:
    """Gemma's: scale by 1 + weight in float32, then round to x's dtype. x [..., D]."""
    return (_normalize(x, eps) * (1.0 + p.weight.astype(jnp.float32))).astype(x.dtype)


def _normalize(x: Array, eps: float) -> Array:
    x32 = x.astype(jnp.float32)
    return x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
