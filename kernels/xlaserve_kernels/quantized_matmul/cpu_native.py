"""Quantised matrix products in C++: native/float_matmul.cc and int8_matmul.cc tell how. Modes of int8 weights only."""

from collections.abc import Sequence

from jax import Array

from xlaserve_kernels import native
from xlaserve_kernels.quantized_matmul.weight import QuantizedWeight

NATIVE_MODES = ("w8a8", "w8a16")


def quantized_matmuls_cpu_native(
    x: Array,
    x_scales: Array | None,
    weights: Sequence[QuantizedWeight],
    biases: Sequence[Array | None],
    out_dtype,
) -> list[Array]:
    """See api.py; x holds quantised values, none of them -128. Raises ValueError for modes that have no kernel."""
    mode = weights[0].mode
    if mode not in NATIVE_MODES:
        raise ValueError(f"mode {mode}: cpu_native multiplies {' and '.join(NATIVE_MODES)} only; xla takes it")
    factors = [native.Factor(weight.values, weight.scales, bias) for weight, bias in zip(weights, biases, strict=True)]
    if x_scales is None:
        return native.matmuls(x, factors, out_dtype)
    return native.int8_matmuls(x, x_scales, factors, out_dtype)
