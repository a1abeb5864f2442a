"""Gated activation for TPUs in Pallas (Mosaic): a program takes a few whole tokens, one piece after another."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from xlaserve_kernels.gated_activation.activations import ACTIVATIONS
from xlaserve_kernels.quantization import quantize_last_axis

_TOKENS = 32  # of a program: the rows of an int8 tile
_PIECE = 1024  # outputs computed at once, at most
_LANES = 128


def gated_activation_pallas_tpu(
    gate_up: Array, activation: str, quantize_group: int | None, *, interpret: bool = False
):
    """See api.py. `interpret` runs it on any platform, for tests."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    quantized, rows = quantize_group is not None, min(num_tokens, _TOKENS)

    def tokens(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((rows, width), lambda t: (t, 0))

    num_groups = size // (quantize_group or size)
    values, scales = pl.pallas_call(
        functools.partial(_kernel, activation=ACTIVATIONS[activation], group=quantize_group),
        grid=(pl.cdiv(num_tokens, rows),),
        in_specs=[tokens(2 * size)],
        out_specs=(tokens(size), tokens(num_groups) if quantized else None),
        out_shape=(
            jax.ShapeDtypeStruct((num_tokens, size), jnp.int8 if quantized else gate_up.dtype),
            jax.ShapeDtypeStruct((num_tokens, num_groups), jnp.float32) if quantized else None,
        ),
        interpret=interpret,
        name="gated_activation",
    )(gate_up)
    return (values, scales) if quantized else values


def _kernel(gate_up_ref, out_ref, scales_ref, *, activation, group: int | None):
    size = out_ref.shape[1]
    piece = _piece(size, group or 1)

    def gate(index, scales):
        start = pl.multiple_of(index * piece, _LANES) if piece < size else 0
        gate, up = (gate_up_ref[:, pl.ds(begin, piece)].astype(jnp.float32) for begin in (start, size + start))
        y = activation(gate) * up
        if scales is not None and group is not None:
            y, scales = _quantize_groups(y, group, scales, index * (piece // group))
        out_ref[:, pl.ds(start, piece)] = y.astype(out_ref.dtype)
        return scales

    scales = None if scales_ref is None else jnp.zeros(scales_ref.shape, jnp.float32)
    scales = lax.fori_loop(0, size // piece, gate, scales)
    if scales_ref is not None:
        scales_ref[...] = scales


def _piece(size: int, group: int) -> int:
    """Outputs computed at once: whole groups and whole lanes, or all of them where lanes do not divide the size."""
    step = math.lcm(group, _LANES)
    return max((n for n in range(step, min(size, _PIECE) + 1, step) if size % n == 0), default=size)


def _quantize_groups(y: Array, group: int, scales: Array, first: Array) -> tuple[Array, Array]:
    """y float32 [rows, piece] -> int8 values, and scales [rows, groups] with those of the groups from `first` on."""
    column = lax.broadcasted_iota(jnp.int32, scales.shape, 1)
    values = []
    for index in range(y.shape[1] // group):
        quantized, scale = quantize_last_axis(y[:, index * group : (index + 1) * group], jnp.int8)
        scales = jnp.where(column == first + index, scale, scales)
        values.append(quantized)
    return jnp.concatenate(values, axis=1), scales
