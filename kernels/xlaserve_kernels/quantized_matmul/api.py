"""Matrix products with quantised weights: argument checks and dispatch to the backend named."""

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve_kernels.checks import expect_shape
from xlaserve_kernels.quantization import quantize_groups
from xlaserve_kernels.quantized_matmul.cpu_native import NATIVE_MODES, quantized_matmuls_cpu_native
from xlaserve_kernels.quantized_matmul.pallas_gpu import quantized_matmul_pallas_gpu
from xlaserve_kernels.quantized_matmul.pallas_tpu import quantized_matmul_pallas_tpu
from xlaserve_kernels.quantized_matmul.weight import (
    MODES,
    SIDE_BY_SIDE,
    QuantizedWeight,
    check_group_size,
    check_mode,
)
from xlaserve_kernels.quantized_matmul.xla import quantized_matmul_xla


def _one_by_one(multiply: Callable[..., Array]) -> Callable[..., list[Array]]:
    def multiply_each(x, x_scales, weights, biases, out_dtype) -> list[Array]:
        return [multiply(x, x_scales, weight, bias, out_dtype) for weight, bias in zip(weights, biases, strict=True)]

    return multiply_each


IMPLEMENTATIONS = {
    "xla": _one_by_one(quantized_matmul_xla),
    "cpu_native": quantized_matmuls_cpu_native,
    "pallas_tpu": _one_by_one(quantized_matmul_pallas_tpu),
    "pallas_tpu_interpret": _one_by_one(functools.partial(quantized_matmul_pallas_tpu, interpret=True)),
    "pallas_gpu": _one_by_one(quantized_matmul_pallas_gpu),
    "pallas_gpu_interpret": _one_by_one(functools.partial(quantized_matmul_pallas_gpu, interpret=True)),
}


def wants_interleaved(backend: str, mode: str) -> bool:
    """Whether `backend` multiplies with values that are `interleaved`, and with no others."""
    return backend == "cpu_native" and mode == "w8a16"


def implements(backend: str, mode: str) -> bool:
    """Whether `backend` has a kernel for `mode`."""
    return backend != "cpu_native" or mode in NATIVE_MODES


def quantized_matmul(
    x: Array | tuple[Array, Array],
    weight: QuantizedWeight,
    bias: Array | None = None,
    *,
    backend: str,
    out_dtype=None,
) -> Array:
    """`quantized_matmuls` of one weight."""
    return quantized_matmuls(x, [weight], [bias], backend=backend, out_dtype=out_dtype)[0]


def quantized_matmuls(
    x: Array | tuple[Array, Array],
    weights: Sequence[QuantizedWeight],
    biases: Sequence[Array | None],
    *,
    backend: str,
    out_dtype=None,
) -> list[Array]:
    """x [T, in] times each weight [out, in], plus its bias [out] -> [T, out]. Weights of one mode and group size.

    x: float32 or bfloat16; where the mode quantises activations, as is then done here, also a pair as
    `quantize_groups(x, dtype, group_size)` gives. Products of int8 are summed exactly within a group, all else in
    float32; scales, bias and the conversion to `out_dtype` (float32 or bfloat16; default x's, required with a pair) are
    applied to that sum.
    Raises ValueError naming the argument at fault.
    """
    if backend not in IMPLEMENTATIONS:
        raise ValueError(f"backend {backend!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    x, x_scales = x if isinstance(x, tuple) else (x, None)
    for weight, bias in zip(weights, biases, strict=True):
        _check_product(x, x_scales, weight, bias, backend)
    if len({(weight.mode, weight.group_size) for weight in weights}) != 1:
        raise ValueError("weights: must be of one mode and group size, as they share x")
    if out_dtype is None and x_scales is not None:
        raise ValueError("out_dtype: must be given with quantised activations")
    out_dtype = np.dtype(x.dtype if out_dtype is None else out_dtype)
    if out_dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"out_dtype {out_dtype}: must be float32 or bfloat16")
    activations = MODES[weights[0].mode].activations
    if activations is not None and x_scales is None:
        x, x_scales = quantize_groups(x, activations, weights[0].group_size)
    return IMPLEMENTATIONS[backend](x, x_scales, weights, biases, out_dtype)


def _check_product(x: Array, x_scales: Array | None, weight: QuantizedWeight, bias: Array | None, backend: str) -> None:
    check_weight(weight)
    if (weight.values.ndim == 3) != wants_interleaved(backend, weight.mode):
        raise ValueError(f"weight.values: must {'not ' * (weight.values.ndim == 3)}be interleaved for {backend}")
    _check_x(x, x_scales, weight)
    if bias is not None and bias.shape != (weight.out_features,):
        raise ValueError(f"bias has shape {list(bias.shape)}: must be [{weight.out_features}]")


def check_weight(weight: QuantizedWeight) -> None:
    """Raises ValueError naming the field that does not fit the others."""
    values, scales, zeros = weight.values, weight.scales, weight.zeros
    check_mode(weight.mode)
    mode, out = MODES[weight.mode], weight.out_features
    if weight.mode == "w8a16" and values.ndim == 3:
        blocks = -(-out // SIDE_BY_SIDE)
        fits = values.shape == (blocks, weight.in_features, SIDE_BY_SIDE)
        expect_shape("weight.values", values, fits, f"[{blocks}, in, {SIDE_BY_SIDE}]")
    else:
        expect_shape("weight.values", values, values.ndim == 2, "[out, in]")
    check_group_size(weight.group_size, weight.mode, weight.in_features)
    _expect_dtype("weight.values", values, mode.values)
    if mode.packed:
        group = weight.group_size or 1
        expect_shape("weight.scales", scales, scales.ndim == 2 and scales.shape[1] == out, f"[in / {group}, {out}]")
        _expect_dtype("weight.scales", scales, jnp.float32, jnp.bfloat16)
        width = -(-scales.shape[0] // 2) * group
        expect_shape("weight.values", values, values.shape[1] == width, f"[out, {width}] with {scales.shape[0]} groups")
    else:
        expect_shape("weight.scales", scales, scales.shape == (out,), f"[{out}]")
        _expect_dtype("weight.scales", scales, jnp.float32)
    if zeros is not None:
        if not mode.packed:
            raise ValueError(f"weight.zeros: must be None with {weight.mode}")
        expect_shape("weight.zeros", zeros, zeros.shape == scales.shape, str(list(scales.shape)))
        _expect_dtype("weight.zeros", zeros, scales.dtype)


def _check_x(x: Array, x_scales: Array | None, weight: QuantizedWeight) -> None:
    expect_shape("x", x, x.ndim == 2 and x.shape[1] == weight.in_features, f"[T, {weight.in_features}]")
    if x_scales is None:
        _expect_dtype("x", x, jnp.float32, jnp.bfloat16)
        return
    activations = MODES[weight.mode].activations
    if activations is None:
        raise ValueError(f"x is a pair of values and scales: {weight.mode} takes activations that are not quantised")
    _expect_dtype("x", x, activations)
    scales_shape = (x.shape[0], weight.in_features // (weight.group_size or weight.in_features))
    expect_shape("x's scales", x_scales, x_scales.shape == scales_shape, str(list(scales_shape)))
    _expect_dtype("x's scales", x_scales, jnp.float32)


def _expect_dtype(name: str, array: Array, *allowed) -> None:
    if array.dtype not in allowed:
        raise ValueError(f"{name} has dtype {array.dtype}: must be {' or '.join(str(np.dtype(d)) for d in allowed)}")
