"""Products of activations with weights [out, in] in C++, of float32, bfloat16, or int8 with a scale per output."""

import jax
import jax.numpy as jnp
from jax import Array

from xlaserve_kernels.native.library import call


def matmul(x: Array, weight: Array, bias: Array | None, out_dtype, scales: Array | None = None) -> Array:
    """x [T, in] times weight [out, in], scaled by scales float32 [out], plus bias [out] -> [T, out] of `out_dtype`.

    x and the result: float32 or bfloat16; summed in float32. weight: float32, bfloat16, or with scales int8, and then
    `quantized_matmul.interleaved`. To the last bit, a token's product does not depend on the others. A row of x that
    is all zeros takes no time: its product is the bias, whatever the weight holds. So padding should be zeros.
    """
    none = jnp.zeros(0, jnp.float32)
    bias = none if bias is None else bias.astype(jnp.float32)
    out = weight.shape[0] if scales is None else scales.shape[0]
    y = jax.ShapeDtypeStruct((x.shape[0], out), out_dtype)
    return call("matmul", y)(x, weight, none if scales is None else scales, bias)
