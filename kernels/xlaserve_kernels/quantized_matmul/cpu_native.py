"""The quantised matrix product in C++: native/matmul.cc tells how. Modes of int8 weights only."""

import jax
import jax.numpy as jnp
from jax import Array

from xlaserve_kernels import native
from xlaserve_kernels.quantized_matmul.weight import QuantizedWeight

NATIVE_MODES = ("w8a8", "w8a16")


def quantized_matmul_cpu_native(
    x: Array, x_scales: Array | None, weight: QuantizedWeight, bias: Array | None, out_dtype
) -> Array:
    """See api.py; x holds quantised values, none of them -128. Raises ValueError for modes that have no kernel."""
    if weight.mode not in NATIVE_MODES:
        raise ValueError(f"mode {weight.mode}: cpu_native multiplies {' and '.join(NATIVE_MODES)} only; xla takes it")
    if x_scales is None:
        return native.matmul(x, weight.values, bias, out_dtype, weight.scales)
    bias = jnp.zeros(0, jnp.float32) if bias is None else bias.astype(jnp.float32)
    y = jax.ShapeDtypeStruct((x.shape[0], weight.out_features), out_dtype)
    return native.call("int8_matmul", y)(x, x_scales, weight.values, weight.scales, bias)
