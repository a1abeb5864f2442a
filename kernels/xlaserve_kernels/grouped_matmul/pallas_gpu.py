"""The grouped matrix product for GPUs in Pallas (Triton), over a flat list of tiles of one group each.

A tile is up to bt consecutive tokens of one group; the list is made on the device by cumulative sums and has room for
T / bt + E + 1 of them, so that no program's work depends on the largest group. Program (i, o) multiplies tile i with
block o of its group's outputs. Tokens behind the last group are a group without a weight, whose tiles are zeros. Each
weight of a group with tokens is read once per tile, those of empty groups never.

Letters: T tokens, E groups, bt, bo, bk tile of tokens, outputs, inputs.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlaserve_kernels.products import dot

_FEWEST_ROWS = 16  # of a Triton product


@dataclass(frozen=True)
class _Tile:
    tokens: int  # bt, a power of two
    outputs: int  # bo, a power of two
    inputs: int  # bk, a power of two


def grouped_matmul_pallas_gpu(x: Array, weights: Array, group_sizes: Array, *, interpret: bool = False) -> Array:
    """See api.py. `interpret` runs it on any platform, for tests."""
    num_tokens, num_groups, out = x.shape[0], weights.shape[0], weights.shape[2]
    tile = choose_tile(num_tokens, num_groups)
    group, start, length = find_tiles(group_sizes, num_tokens, tile.tokens)
    return pl.pallas_call(
        functools.partial(_kernel, tile=tile),
        grid=(group.shape[0], pl.cdiv(out, tile.outputs)),
        out_shape=jax.ShapeDtypeStruct((num_tokens, out), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="grouped_matmul",
    )(group, start, length, x, weights)


def choose_tile(num_tokens: int, num_groups: int) -> _Tile:
    rows = min(max(pl.next_power_of_2(pl.cdiv(num_tokens, num_groups)), _FEWEST_ROWS), 128)
    return _Tile(rows, 64 if rows <= 64 else 128, 64)


def find_tiles(group_sizes: Array, num_tokens: int, tile_tokens: int) -> tuple[Array, Array, Array]:
    """Group, first token and number of tokens of each tile, int32. Group E is that of tokens behind the groups.

    The list is as long as it can become; what remains of it are tiles of no tokens.
    """
    num_groups = group_sizes.shape[0]
    sizes = jnp.concatenate([group_sizes, (num_tokens - group_sizes.sum())[None]]).astype(jnp.int32)  # [E + 1]
    tiles = pl.cdiv(sizes, tile_tokens)
    tiles_end, tokens_end = jnp.cumsum(tiles), jnp.cumsum(sizes)
    index = jnp.arange(num_tokens // tile_tokens + min(num_groups + 1, num_tokens))
    group = jnp.minimum(jnp.searchsorted(tiles_end, index, side="right", method="compare_all"), num_groups)
    offset = (index - (tiles_end - tiles)[group]) * tile_tokens
    length = jnp.clip(sizes[group] - offset, 0, tile_tokens)
    return group.astype(jnp.int32), (tokens_end - sizes)[group] + offset.astype(jnp.int32), length.astype(jnp.int32)


def _kernel(group_ref, start_ref, length_ref, x_ref, w_ref, out_ref, *, tile: _Tile):
    index = pl.program_id(0)
    group, length = group_ref[index], length_ref[index]
    (num_groups, num_inputs, num_outputs), row = w_ref.shape, jnp.arange(tile.tokens)
    rows, in_rows = start_ref[index] + row, row < length
    columns = pl.program_id(1) * tile.outputs + jnp.arange(tile.outputs)
    in_columns = columns < num_outputs

    def add(step, acc):
        inputs = step * tile.inputs + jnp.arange(tile.inputs)
        inside = inputs < num_inputs
        x = plgpu.load(x_ref.at[rows[:, None], inputs[None, :]], mask=in_rows[:, None] & inside[None, :], other=0.0)
        w = plgpu.load(
            w_ref.at[group, inputs[:, None], columns[None, :]], mask=inside[:, None] & in_columns[None, :], other=0.0
        )
        return acc + dot(x, w)

    live = (group < num_groups) & (length > 0)
    steps = jnp.where(live, jnp.int32(pl.cdiv(num_inputs, tile.inputs)), jnp.int32(0))
    acc = lax.fori_loop(jnp.int32(0), steps, add, jnp.zeros((tile.tokens, tile.outputs), jnp.float32))
    where = out_ref.at[rows[:, None], columns[None, :]]
    plgpu.store(where, acc.astype(out_ref.dtype), mask=in_rows[:, None] & in_columns[None, :])
