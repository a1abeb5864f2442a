"""Grouped matrix product: argument checks and dispatch to the backend named."""

import functools

import jax.numpy as jnp
from jax import Array

from xlaserve_kernels.checks import expect_shape
from xlaserve_kernels.grouped_matmul.pallas_gpu import grouped_matmul_pallas_gpu
from xlaserve_kernels.grouped_matmul.xla import grouped_matmul_xla

IMPLEMENTATIONS = {
    "xla": grouped_matmul_xla,
    "pallas_gpu": grouped_matmul_pallas_gpu,
    "pallas_gpu_interpret": functools.partial(grouped_matmul_pallas_gpu, interpret=True),
}


def grouped_matmul(x: Array, weights: Array, group_sizes: Array, *, backend: str) -> Array:
    """x [T, in], sorted by group, times each token's weight of weights [E, in, out] -> [T, out] in x's dtype.

    x and weights: float32 or bfloat16, both the same; group_sizes int32 [E]: how many tokens each group has, any may be
    zero. Their sum is at most T (not checked, as it is known only on the device); tokens behind it come back as zeros.
    Accumulated in float32. Weights are not [out, in] as others are: where only the outputs are a multiple of 128, as in
    gpt-oss, XLA for TPUs would copy all experts at every call. Raises ValueError naming the argument at fault.
    """
    if backend not in IMPLEMENTATIONS:
        raise ValueError(f"backend {backend!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    expect_shape("x", x, x.ndim == 2, "[T, in]")
    expect_shape("weights", weights, weights.ndim == 3 and weights.shape[1] == x.shape[1], f"[E, {x.shape[1]}, out]")
    expect_shape("group_sizes", group_sizes, group_sizes.shape == weights.shape[:1], f"[{weights.shape[0]}]")
    for name, array, allowed in (
        ("x", x, (jnp.float32, jnp.bfloat16)),
        ("weights", weights, (x.dtype,)),
        ("group_sizes", group_sizes, (jnp.int32,)),
    ):
        if array.dtype not in allowed:
            raise ValueError(
                f"{name} has dtype {array.dtype}: must be {' or '.join(str(jnp.dtype(d)) for d in allowed)}"
            )
    return IMPLEMENTATIONS[backend](x, weights, group_sizes)
