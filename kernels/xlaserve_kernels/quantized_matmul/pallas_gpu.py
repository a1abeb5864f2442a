"""The quantised matrix product for GPUs in Pallas (Triton).

Program (t, o) computes one tile of the output, [bt, bo], walking over the inputs; the weight is widened in registers.
Rows and inputs beyond the edges are masked, so any shape will do.

Letters: T tokens, bt, bo, bk tile of tokens, outputs, inputs.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlaserve_kernels.products import dot_transposed
from xlaserve_kernels.quantization import FLOAT8_UNIT, float8_bits_to_float16
from xlaserve_kernels.quantized_matmul.weight import MODES, QuantizedWeight

_FEWEST_ROWS = 16  # of a Triton product


@dataclass(frozen=True)
class _Tile:
    tokens: int  # bt, a power of two
    outputs: int  # bo, a power of two
    inputs: int  # bk, a power of two; the group where there are groups
    by_group: bool
    stages: int  # of loads under way


def quantized_matmul_pallas_gpu(
    x: Array, x_scales: Array | None, weight: QuantizedWeight, bias: Array | None, out_dtype, *, interpret: bool = False
) -> Array:
    """See api.py; x holds quantised values where x_scales is given. `interpret` runs it on any platform, for tests."""
    num_tokens, out = x.shape[0], weight.out_features
    tile = choose_tile(num_tokens, weight)
    kernel = functools.partial(_packed_kernel if MODES[weight.mode].packed else _kernel, tile=tile)
    # Tiles of tokens first: they share a piece of the weight, which is then read once.
    grid = (pl.cdiv(num_tokens, tile.tokens), pl.cdiv(out, tile.outputs))
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=jax.ShapeDtypeStruct((num_tokens, out), out_dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=tile.stages),
        interpret=interpret,
        name="quantized_matmul",
    )(_bits(x), x_scales, _bits(weight.values), weight.scales, weight.zeros, bias)


def choose_tile(num_tokens: int, weight: QuantizedWeight) -> _Tile:
    """Few outputs a tile while the weight is what is read, so that all multiprocessors share in it."""
    decodes, packed = num_tokens <= 64, MODES[weight.mode].packed
    tokens = min(max(pl.next_power_of_2(num_tokens), _FEWEST_ROWS), 64 if decodes or packed else 128)
    inputs = weight.group_size or (128 if decodes else 64)
    # What is loaded ahead has to fit into an A100's 163 KiB of shared memory.
    return _Tile(tokens, 32 if decodes else 128, inputs, weight.group_size is not None, 4 if decodes else 2)


def _bits(x: Array) -> Array:
    """8-bit floats as their bits: only some cards convert them, which Triton knows too late."""
    return lax.bitcast_convert_type(x, jnp.uint8) if x.dtype == jnp.float8_e4m3fn else x


def _kernel(x_ref, x_scales_ref, w_ref, scales_ref, zeros_ref, bias_ref, out_ref, *, tile: _Tile):
    """Weights of 8 bits, one scale per output."""
    del zeros_ref
    rows, in_rows, columns, in_columns = _places(out_ref, tile)
    num_inputs = x_ref.shape[1]

    def add(step, acc):
        inputs = step * tile.inputs + jnp.arange(tile.inputs)
        inside = inputs < num_inputs
        x = _load(x_ref, rows, in_rows, inputs, inside)
        w = _load(w_ref, columns, in_columns, inputs, inside)
        if x.dtype == jnp.uint8:
            x = float8_bits_to_float16(x)
        if w.dtype == jnp.uint8:
            w = float8_bits_to_float16(w)
        if x.dtype != w.dtype:
            w = w.astype(jnp.float32).astype(x.dtype)
        product = dot_transposed(x, w).astype(jnp.float32)
        if tile.by_group:
            product *= plgpu.load(x_scales_ref.at[rows, step], mask=in_rows, other=0.0)[:, None]
        return acc + product

    acc = jnp.zeros((tile.tokens, tile.outputs), jnp.float32)
    acc = lax.fori_loop(0, pl.cdiv(num_inputs, tile.inputs), add, acc)
    scale = plgpu.load(scales_ref.at[columns], mask=in_columns, other=0.0)[None, :]
    for ref in (x_ref, w_ref):
        if ref.dtype == jnp.uint8:
            scale *= FLOAT8_UNIT
    y = acc * scale
    if x_scales_ref is not None and not tile.by_group:
        y *= plgpu.load(x_scales_ref.at[rows, 0], mask=in_rows, other=0.0)[:, None]
    _store(out_ref, y, bias_ref, rows, in_rows, columns, in_columns)


def _packed_kernel(x_ref, x_scales_ref, w_ref, scales_ref, zeros_ref, bias_ref, out_ref, *, tile: _Tile):
    """Weights of 4 bits: a byte holds one value of each of two neighbouring groups."""
    del x_scales_ref
    rows, in_rows, columns, in_columns = _places(out_ref, tile)
    num_groups, group = scales_ref.shape[0], tile.inputs

    def add_pair(pair, acc):
        lane = jnp.arange(group)
        packed = _load(w_ref, columns, in_columns, pair * group + lane, lane >= 0)
        for half in (0, 1):
            index = 2 * pair + half
            exists = index < num_groups  # an odd last group has no neighbour
            x = _load(x_ref, rows, in_rows, index * group + lane, (lane >= 0) & exists)
            scale = plgpu.load(scales_ref.at[index, columns], mask=in_columns & exists, other=0.0)
            values = ((packed >> 4) if half else (packed & 15)).astype(jnp.int32).astype(jnp.float32)
            if zeros_ref is None:
                values -= 8.0
            else:
                zero = plgpu.load(zeros_ref.at[index, columns], mask=in_columns & exists, other=0.0)
                values -= zero.astype(jnp.float32)[:, None]
            acc += dot_transposed(x, values.astype(x.dtype)) * scale.astype(jnp.float32)[None, :]
        return acc

    acc = jnp.zeros((tile.tokens, tile.outputs), jnp.float32)
    acc = lax.fori_loop(0, pl.cdiv(num_groups, 2), add_pair, acc)
    _store(out_ref, acc, bias_ref, rows, in_rows, columns, in_columns)


def _places(out_ref, tile: _Tile) -> tuple[Array, Array, Array, Array]:
    """Tokens [bt] and outputs [bo] of this program, each with which of them exist."""
    rows = pl.program_id(0) * tile.tokens + jnp.arange(tile.tokens)
    columns = pl.program_id(1) * tile.outputs + jnp.arange(tile.outputs)
    return rows, rows < out_ref.shape[0], columns, columns < out_ref.shape[1]


def _load(ref, rows, in_rows, inputs, inside) -> Array:
    return plgpu.load(ref.at[rows[:, None], inputs[None, :]], mask=in_rows[:, None] & inside[None, :], other=0)


def _store(out_ref, y, bias_ref, rows, in_rows, columns, in_columns) -> None:
    if bias_ref is not None:
        y += plgpu.load(bias_ref.at[columns], mask=in_columns, other=0.0).astype(jnp.float32)[None, :]
    where = out_ref.at[rows[:, None], columns[None, :]]
    plgpu.store(where, y.astype(out_ref.dtype), mask=in_rows[:, None] & in_columns[None, :])
