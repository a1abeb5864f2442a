"""Symmetric quantisation of activations, with scales that are float32 arrays of bfloat16 numbers."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

LARGEST = {np.dtype("int8"): 127.0, np.dtype(jnp.float8_e4m3fn): 448.0}
_SMALLEST = 1e-30  # a vector of zeros has this absolute maximum: its scale must not be zero


def quantize(x: Array, dtype, group_size: int | None = None) -> tuple[Array, Array]:
    """x float [..., n] -> (values of `dtype` [..., n], scales float32 [..., n / group_size]); x = values * scales.

    `dtype`: int8 or float8_e4m3fn. `group_size`: consecutive elements of the last axis that share a scale, None: all.
    A scale is the group's absolute maximum over the dtype's largest number (127, 448), rounded up to bfloat16, so that
    nothing is clipped but by the division's own rounding. Rounds to nearest, ties to even. NaN and infinities are
    undefined. Raises ValueError for another dtype, or a group size that does not divide n.
    """
    largest = LARGEST.get(np.dtype(dtype))
    if largest is None:
        raise ValueError(f"dtype {np.dtype(dtype)}: must be one of {', '.join(map(str, LARGEST))}")
    n = x.shape[-1]
    group = group_size or n
    if n % group:
        raise ValueError(f"group_size {group_size}: must divide the last axis of x, {list(x.shape)}")
    groups = x.astype(jnp.float32).reshape(*x.shape[:-1], n // group, group)
    scales = _round_up_to_bfloat16(jnp.maximum(jnp.abs(groups).max(axis=-1), _SMALLEST) / largest)
    scaled = jnp.clip(groups / scales[..., None], -largest, largest)
    if np.dtype(dtype) == np.int8:
        scaled = jnp.round(scaled)
    return scaled.astype(dtype).reshape(x.shape), scales


def _round_up_to_bfloat16(x: Array) -> Array:
    """x float32, positive -> the least bfloat16 number that is not below it, as float32."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(0xFFFF)) & jnp.uint32(0xFFFF0000), jnp.float32)
