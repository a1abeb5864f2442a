"""The matrix product inside kernels."""

import jax.numpy as jnp
from jax import Array, lax


def dot_transposed(a: Array, b: Array) -> Array:
    """a [m, k] times b [n, k] -> [m, n]; int32 of int8 operands, else float32. float32 operands are not rounded."""
    return _dot(a, b, 1)


def dot(a: Array, b: Array) -> Array:
    """a [m, k] times b [k, n] -> [m, n]; else as dot_transposed."""
    return _dot(a, b, 0)


def _dot(a: Array, b: Array, axis: int) -> Array:
    kind = jnp.int32 if a.dtype == jnp.int8 else jnp.float32
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(a, b, (((1,), (axis,)), ((), ())), precision=precision, preferred_element_type=kind)
