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
    if np.dtype(dtype) not in LARGEST:
        raise ValueError(f"dtype {np.dtype(dtype)}: must be one of {', '.join(map(str, LARGEST))}")
    n = x.shape[-1]
    group = group_size or n
    if n % group:
        raise ValueError(f"group_size {group_size}: must divide the last axis of x, {list(x.shape)}")
    values, scales = quantize_group(x.astype(jnp.float32).reshape(*x.shape[:-1], n // group, group), dtype)
    return values.reshape(x.shape), scales[..., 0]


def quantize_group(x: Array, dtype) -> tuple[Array, Array]:
    """x float32 [..., n], one group -> (values of `dtype` [..., n], scales float32 [..., 1]). For kernels too."""
    largest = LARGEST[np.dtype(dtype)]
    scale = _round_up_to_bfloat16(jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), _SMALLEST) / largest)
    scaled = jnp.clip(x / scale, -largest, largest)
    if np.dtype(dtype) == np.int8:
        scaled = _round_to_even(scaled)
    return scaled.astype(dtype), scale


def _round_up_to_bfloat16(x: Array) -> Array:
    """x float32, positive -> the least bfloat16 number that is not below it, as float32."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(0xFFFF)) & jnp.uint32(0xFFFF0000), jnp.float32)


def _round_to_even(x: Array) -> Array:
    """To the nearest integer, from one half to the even one. By floor, as Pallas's Triton has no rounding."""
    below = jnp.floor(x)
    rest, odd = x - below, below - 2 * jnp.floor(below / 2)
    return jnp.where((rest > 0.5) | ((rest == 0.5) & (odd == 1)), below + 1, below)
