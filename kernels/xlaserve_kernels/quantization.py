"""Symmetric quantisation, one scale per vector: for the KV pool and for activations."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

LARGEST = {"int8": 127, "float8_e4m3fn": 448}  # magnitude, by the dtypes that `quantize` gives
_SMALLEST = 2.0**-100  # scale: what is flushed to zero, below 2**-126, is no step of it


def quantize(x: Array, dtype, axis: int = -1) -> tuple[Array, Array]:
    """(values, scales) with x ~ values * scales, each value as near as `dtype` (int8, float8_e4m3fn) can be.

    x: float, one vector along `axis`. values: x's shape; scales: float32, x's shape without `axis`. A scale is the
    vector's largest magnitude / 127 (int8) or 448 (float8_e4m3fn), rounded up to what bfloat16 holds: nothing
    saturates, and kernels may multiply by it in bfloat16. Zeros stay zeros; NaN and infinity make the scale NaN or
    infinite, so that they are not lost. Raises ValueError for another dtype.
    """
    dtype = np.dtype(dtype)
    if dtype.name not in LARGEST:
        raise ValueError(f"dtype {dtype.name}: can quantise to {', '.join(LARGEST)}")
    largest = LARGEST[dtype.name]
    x = x.astype(jnp.float32)
    scales = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / largest
    scales = _round_up_to_bfloat16(jnp.maximum(scales, _SMALLEST))
    values = jnp.clip(x / scales, -largest, largest)
    if dtype == jnp.int8:
        values = jnp.round(values)
    return values.astype(dtype), jnp.squeeze(scales, axis)


def _round_up_to_bfloat16(x: Array) -> Array:
    """Positive float32. On the bits: XLA may drop a conversion to bfloat16 and back."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(0xFFFF)) & jnp.uint32(0xFFFF0000), jnp.float32)


def scaled_dtype(dtype) -> np.dtype:
    """For products of quantised values with weights that hold their scales, where the queries have `dtype`.

    bfloat16 holds all values exactly and the scales' whole range, which float16 has not.
    """
    return np.dtype(jnp.bfloat16) if dtype == jnp.float16 else np.dtype(dtype)


def widen(stored: Array, dtype) -> Array:
    """What a pool stores (floats, int8, or uint8 bits of float8_e4m3fn) as an operand of `dtype`, not yet scaled."""
    return (float8_bits_to_float32(stored) if stored.dtype == jnp.uint8 else stored).astype(dtype)


def float8_bits_to_float32(bits: Array) -> Array:
    """uint8 bits of float8_e4m3fn as float32, exactly; its two NaN come out as 480 and -480.

    In integer operations, for GPUs before sm_89 convert no float8. By way of float16, where E4M3's subnormals are
    subnormals too: they would be flushed to zero in float32.
    """
    bits = bits.astype(jnp.uint16)
    half = lax.bitcast_convert_type(((bits & 0x80) << 8) | ((bits & 0x7F) << 7), jnp.float16)
    return half.astype(jnp.float32) * 2.0**8  # the exponents' biases are 15 and 7
