"""Symmetric quantisation, one scale per vector: for the KV pool, for activations and for weights of 8 bits."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

LARGEST = {"int8": 127, "float8_e4m3fn": 448}  # magnitude, by the dtypes that `quantize` gives
SMALLEST_SCALE = 2.0**-100  # what is flushed to zero, below 2**-126, is no step of it
FLOAT8_UNIT = 2.0**8  # of what float8_bits_to_float16 gives: the exponents' biases are 15 and 7


def quantize(x: Array, dtype) -> tuple[Array, Array]:
    """(values, scales) with x ~ values * scales, each value as near as `dtype` (int8, float8_e4m3fn) can be.

    x: float, a vector along the last axis. values: x's shape; scales: float32, x's shape without that axis. A scale is
    the vector's largest magnitude / 127 (int8) or 448 (float8_e4m3fn), rounded up to what bfloat16 holds: nothing
    saturates, and kernels may multiply by it in bfloat16. Halves go to the even neighbour. Zeros stay zeros; NaN and
    infinity make the scale NaN or infinite, so that they are not lost. Raises ValueError for another dtype.
    """
    values, scales = quantize_last_axis(x, dtype, largest=_largest_magnitude)
    return values, scales[..., 0]


def quantize_groups(x: Array, dtype, group_size: int | None = None) -> tuple[Array, Array]:
    """x float [..., n] -> values [..., n] and scales float32 [..., n / group_size], each of that many neighbours.

    None: one scale for all n, [..., 1]. Raises ValueError also for a group size that does not divide n.
    """
    n = x.shape[-1]
    group = group_size or n
    if n % group:
        raise ValueError(f"group_size {group_size}: must divide the last axis of x, {list(x.shape)}")
    values, scales = quantize(x.reshape(*x.shape[:-1], n // group, group), dtype)
    return values.reshape(x.shape), scales


def _max_of_magnitudes(x: Array) -> Array:
    return jnp.max(jnp.abs(x), axis=-1, keepdims=True)


def _largest_magnitude(x: Array) -> Array:
    """Of the bits, as integers: XLA's maximum of floats loses NaN on CPUs, in reductions of many rows."""
    bits = lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(0x7FFFFFFF)
    return lax.bitcast_convert_type(jnp.max(bits, axis=-1, keepdims=True), jnp.float32)


def quantize_last_axis(x: Array, dtype, largest=_max_of_magnitudes) -> tuple[Array, Array]:
    """The same with scales [..., 1]; kernels may call it. largest: x [..., n] -> the largest magnitudes [..., 1]."""
    dtype = np.dtype(dtype)
    if dtype.name not in LARGEST:
        raise ValueError(f"dtype {dtype.name}: can quantise to {', '.join(LARGEST)}")
    most = LARGEST[dtype.name]
    x = x.astype(jnp.float32)
    scales = _round_up_to_bfloat16(jnp.maximum(largest(x) / most, SMALLEST_SCALE))
    values = jnp.clip(x / scales, -most, most)
    if dtype == jnp.int8:
        values = _round_to_even(values)
    return values.astype(dtype), scales


def _round_up_to_bfloat16(x: Array) -> Array:
    """Positive float32. On the bits: XLA may drop a conversion to bfloat16 and back."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(0xFFFF)) & jnp.uint32(0xFFFF0000), jnp.float32)


def _round_to_even(x: Array) -> Array:
    """To the nearest integer. By floor, as Pallas's Triton has no rounding."""
    below = jnp.floor(x)
    rest, odd = x - below, below - 2 * jnp.floor(below / 2)
    return jnp.where((rest > 0.5) | ((rest == 0.5) & (odd == 1)), below + 1, below)


def scaled_dtype(dtype) -> np.dtype:
    """For products of quantised values with weights that hold their scales, where the queries have `dtype`.

    bfloat16 holds all values exactly and the scales' whole range, which float16 has not.
    """
    return np.dtype(jnp.bfloat16) if dtype == jnp.float16 else np.dtype(dtype)


def widen(stored: Array, dtype) -> Array:
    """What a pool stores (floats, int8, or uint8 bits of float8_e4m3fn) as an operand of `dtype`, not yet scaled."""
    if stored.dtype == jnp.uint8:
        stored = float8_bits_to_float16(stored).astype(jnp.float32) * FLOAT8_UNIT
    return stored.astype(dtype)


def float8_bits_to_float16(bits: Array) -> Array:
    """uint8 bits of float8_e4m3fn as float16 numbers of 1 / FLOAT8_UNIT, exactly; NaN comes out as 480 or -480.

    In integer operations, for GPUs before sm_89 convert no float8. Not to float32, where E4M3's subnormals would be
    flushed to zero if they were made of bits.
    """
    bits = bits.astype(jnp.uint16)
    return lax.bitcast_convert_type(((bits & 0x80) << 8) | ((bits & 0x7F) << 7), jnp.float16)
