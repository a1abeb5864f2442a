"""Residual and RMSNorm in XLA operations. Runs anywhere."""

import jax.numpy as jnp
from jax import Array, lax

from xlaserve_kernels.quantization import quantize_groups


def add_rms_norm_xla(x: Array, residual: Array, weight: Array, eps: float, quantize_group: int | None):
    """See api.py."""
    total = (x.astype(jnp.float32) + residual.astype(jnp.float32)).astype(residual.dtype)
    total32 = total.astype(jnp.float32)
    normed = total32 * lax.rsqrt(jnp.mean(total32 * total32, axis=-1, keepdims=True) + eps) * weight.astype(jnp.float32)
    if quantize_group is None:
        return normed.astype(x.dtype), total
    return quantize_groups(normed, jnp.int8, quantize_group), total
