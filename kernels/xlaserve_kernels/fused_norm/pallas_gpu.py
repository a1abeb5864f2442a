"""Residual and RMSNorm for GPUs in Pallas (Triton): a program holds one token in registers, so all is read once.

The token is a matrix of groups, [D / group, group], padded to powers of two, so that a group's maximum is that of
a row.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlaserve_kernels.quantization import quantize_last_axis


def add_rms_norm_pallas_gpu(
    x: Array, residual: Array, weight: Array, eps: float, quantize_group: int | None, *, interpret: bool = False
):
    """See api.py. `interpret` runs it on any platform, for tests."""
    num_tokens, size = x.shape
    group = quantize_group or size
    quantized = quantize_group is not None
    outputs = (
        jax.ShapeDtypeStruct(x.shape, jnp.int8 if quantized else x.dtype),
        jax.ShapeDtypeStruct((num_tokens, size // group), jnp.float32),
        jax.ShapeDtypeStruct(x.shape, residual.dtype),
    )
    normed, scales, total = pl.pallas_call(
        functools.partial(_kernel, eps=eps, group=group, quantized=quantized),
        grid=(num_tokens,),
        out_shape=(outputs[0], outputs[1] if quantized else None, outputs[2]),
        compiler_params=plgpu.CompilerParams(num_warps=8),
        interpret=interpret,
        name="add_rms_norm",
    )(x, residual, weight)
    return (normed, scales) if quantized else normed, total


def _kernel(
    x_ref, residual_ref, weight_ref, normed_ref, scales_ref, total_ref, *, eps: float, group: int, quantized: bool
):
    token, size = pl.program_id(0), x_ref.shape[1]
    groups = jnp.arange(pl.next_power_of_2(size // group))
    member = jnp.arange(pl.next_power_of_2(group))
    place = groups[:, None] * group + member[None, :]
    exists = (groups < size // group)[:, None] & (member < group)[None, :]
    place = jnp.where(exists, place, place + size)  # no two alike

    def load(ref):
        return plgpu.load(ref, mask=exists, other=0.0).astype(jnp.float32)

    total = (load(x_ref.at[token, place]) + load(residual_ref.at[token, place])).astype(total_ref.dtype)
    plgpu.store(total_ref.at[token, place], total, mask=exists)
    total = total.astype(jnp.float32)
    mean = jnp.sum(total * total) / size
    normed = total * lax.rsqrt(mean + eps) * load(weight_ref.at[place])
    if quantized:
        normed, scale = quantize_last_axis(normed, jnp.int8)
        plgpu.store(scales_ref.at[token, groups[:, None]], scale, mask=(groups < size // group)[:, None])
    plgpu.store(normed_ref.at[token, place], normed.astype(normed_ref.dtype), mask=exists)
