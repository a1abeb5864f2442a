"""Products of activations with weights [out, in] in C++."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from xlaserve_kernels.native.library import call


class Factor(NamedTuple):
    """What activations are multiplied with."""

    values: Array
    scales: Array | None  # float32 [out], of int8
    bias: Array | None  # [out]


def matmuls(x: Array, factors: Sequence[Factor], out_dtype) -> list[Array]:
    """x [T, in] times each of the factors' values [out, in], scaled, plus the bias -> [T, out] of `out_dtype`.

    x and the results: float32 or bfloat16; summed in float32. values: float32, bfloat16, or with scales int8, and then
    `quantized_matmul.interleaved`. To the last bit, a token's product does not depend on the others. A row of x that
    is all zeros takes no time: its product is the bias, whatever the weight holds. So padding should be zeros.
    """
    return _call("matmul", [x], factors, out_dtype)


def int8_matmuls(x: Array, x_scales: Array, factors: Sequence[Factor], out_dtype) -> list[Array]:
    """As `matmuls`, of x int8 [T, in], none of it -128, with scales float32 [T, groups], and values int8 [out, in].

    Summed exactly within a group.
    """
    return _call("int8_matmul", [x, x_scales], factors, out_dtype)


def _call(kernel: str, activations: list[Array], factors: Sequence[Factor], out_dtype) -> list[Array]:
    none = jnp.zeros(0, jnp.float32)
    operands, results = [], []
    for values, scales, bias in factors:
        operands += [values, none if scales is None else scales, none if bias is None else bias.astype(jnp.float32)]
        out = values.shape[0] if scales is None else scales.shape[0]
        results.append(jax.ShapeDtypeStruct((activations[0].shape[0], out), out_dtype))
    return call(kernel, results)(*activations, *operands)
