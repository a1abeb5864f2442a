"""Residual and RMSNorm: argument checks and dispatch to the backend named."""

import functools

import jax.numpy as jnp
from jax import Array

from xlaserve_kernels.fused_norm.pallas_gpu import add_rms_norm_pallas_gpu
from xlaserve_kernels.fused_norm.xla import add_rms_norm_xla

# None for TPUs: there XLA's own fusion moves no byte twice.
IMPLEMENTATIONS = {
    "xla": add_rms_norm_xla,
    "pallas_gpu": add_rms_norm_pallas_gpu,
    "pallas_gpu_interpret": functools.partial(add_rms_norm_pallas_gpu, interpret=True),
}


def add_rms_norm(
    x: Array, residual: Array, weight: Array, eps: float, quantize_group: int | None = None, *, backend: str
) -> tuple[Array | tuple[Array, Array], Array]:
    """x, residual [T, D], weight [D] -> (norm of x + residual, x + residual), [T, D] each.

    The sum is rounded to the residual's dtype, and what is normalised is the rounded one. The norm is computed in
    float32 and rounded once, to x's dtype; or, given `quantize_group`, to int8 with a scale for each that many inputs,
    a pair as `quantize_groups(x, int8, quantize_group)` gives. x and residual: float32 or bfloat16, both the same.
    Raises ValueError naming the argument at fault.
    """
    if backend not in IMPLEMENTATIONS:
        raise ValueError(f"backend {backend!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    if x.ndim != 2 or x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x is {x.dtype}{list(x.shape)}: must be [T, D] of float32 or bfloat16")
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"residual is {residual.dtype}{list(residual.shape)}: must be {x.dtype}{list(x.shape)} as x is"
        )
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight has shape {list(weight.shape)}: must be [{x.shape[1]}]")
    if quantize_group is not None and (quantize_group < 1 or x.shape[1] % quantize_group):
        raise ValueError(f"quantize_group {quantize_group}: must divide {x.shape[1]}")
    return IMPLEMENTATIONS[backend](x, residual, weight, eps, quantize_group)
