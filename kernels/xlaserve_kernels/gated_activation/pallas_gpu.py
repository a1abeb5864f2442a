"""Gated activation for GPUs in Pallas (Triton): a program takes a few groups of one token."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlaserve_kernels.gated_activation.activations import ACTIVATIONS
from xlaserve_kernels.quantization import quantize_last_axis

_PIECE = 2048  # outputs of a program


def gated_activation_pallas_gpu(
    gate_up: Array, activation: str, quantize_group: int | None, *, interpret: bool = False
):
    """See api.py. `interpret` runs it on any platform, for tests."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    quantized, group = quantize_group is not None, quantize_group or _PIECE
    groups = max(1, _PIECE // pl.next_power_of_2(group))
    values, scales = pl.pallas_call(
        functools.partial(_kernel, activation=ACTIVATIONS[activation], group=group, groups=groups),
        grid=(num_tokens, pl.cdiv(size, groups * group)),
        out_shape=(
            jax.ShapeDtypeStruct((num_tokens, size), jnp.int8 if quantized else gate_up.dtype),
            jax.ShapeDtypeStruct((num_tokens, size // group), jnp.float32) if quantized else None,
        ),
        compiler_params=plgpu.CompilerParams(num_warps=4),
        interpret=interpret,
        name="gated_activation",
    )(gate_up)
    return (values, scales) if quantized else values


def _kernel(gate_up_ref, out_ref, scales_ref, *, activation, group: int, groups: int):
    token, size = pl.program_id(0), out_ref.shape[1]
    index = pl.program_id(1) * groups + jnp.arange(groups)
    member = jnp.arange(pl.next_power_of_2(group))
    place = index[:, None] * group + member[None, :]
    exists = (member < group)[None, :] & (place < size)
    place = jnp.where(exists, place, place + 2 * size)  # no two alike

    def load(start: int) -> Array:
        return plgpu.load(gate_up_ref.at[token, start + place], mask=exists, other=0.0).astype(jnp.float32)

    y = activation(load(0)) * load(size)
    if scales_ref is not None:
        y, scale = quantize_last_axis(y, jnp.int8)
        plgpu.store(scales_ref.at[token, index[:, None]], scale, mask=(index * group < size)[:, None])
    plgpu.store(out_ref.at[token, place], y.astype(out_ref.dtype), mask=exists)
