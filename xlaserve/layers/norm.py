"""RMSNorm, in float32 whatever the model's dtype."""

from functools import partial

import flax.struct
import jax.numpy as jnp
from jax import Array, lax
from xlaserve_kernels import native

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
    return _on_each_platform(x, p.weight, eps, unit_offset=False)


def rms_norm_unit_offset(x: Array, p: RMSNorm, eps: float) -> Array:
    """Gemma's: scale by 1 + weight in float32, then round to x's dtype. x [..., D]."""
    return _on_each_platform(x, p.weight, eps, unit_offset=True)


def _on_each_platform(x: Array, weight: Array, eps: float, *, unit_offset: bool) -> Array:
    plain = partial(_rms_norm, eps=eps, unit_offset=unit_offset)
    if not (native.is_usable() and x.dtype == weight.dtype and x.dtype in (jnp.float32, jnp.bfloat16)):
        return plain(x, weight)
    on_cpu = partial(native.rms_norm, eps=eps, unit_offset=unit_offset)
    return lax.platform_dependent(x, weight, cpu=on_cpu, default=plain)


def _rms_norm(x: Array, weight: Array, *, eps: float, unit_offset: bool) -> Array:
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    if unit_offset:
        return (normed * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
    return weight * normed.astype(x.dtype)
