"""The matrix product inside kernels."""

import jax.numpy as jnp
from jax import Array, lax


def dot_transposed(a: Array, b: Array) -> Array:
    """a [m, k] times b [n, k] -> [m, n]; int32 of int8 operands, else float32. float32 operands are not rounded."""
    kind = jnp.int32 if a.dtype == jnp.int8 else jnp.float32
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=kind)
