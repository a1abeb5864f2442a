"""Writes keys and values into merged pages on TPUs: each page touched is read, changed and written back, pipelined.

A token's rows lie in as many tiles as it has heads, so single tokens cannot be copied into the pool; whole pages can.
Grid step u handles segment u: consecutive tokens of one row that share a block. Segments never share one.

Letters: T tokens, R rows, K kv heads, H head_dim, L lanes, U segments, n the most tokens of a segment.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlaserve_kernels.paged_attention.layout import NULL_BLOCK
from xlaserve_kernels.paged_attention.merged_rows import MergedRowsLayout


def kv_write_pallas_tpu(
    pool: Array,
    keys: Array,
    values: Array,
    slot_mapping: Array,
    query_start_loc: Array,
    *,
    layout: MergedRowsLayout,
    interpret: bool = False,
) -> Array:
    """See api.py for the arguments; `interpret` simulates the kernel on a CPU and raises on a race, for tests."""
    num_tokens, num_rows = keys.shape[0], query_start_loc.shape[0] - 1
    longest = min(num_tokens, layout.block_size)
    # A row has n // block_size whole blocks at most, and a partly written one at either end.
    num_segments = min(num_tokens, num_tokens // layout.block_size + 2 * num_rows)
    segments = _find_segments(slot_mapping, num_segments, pool.shape[0], layout.block_size)

    tokens = layout.merge(keys, values)  # [T, K or 2K, L]
    tokens = jnp.pad(tokens, ((0, longest - 1), (0, 0), (0, 0)))  # the last segment's read must not leave the array
    page = pl.BlockSpec((1, *pool.shape[1:]), lambda segment, block, *_: (block[segment], 0, 0))
    shape = (longest, *tokens.shape[1:])
    of_segment = pl.BlockSpec(tuple(map(pl.Element, shape)), lambda segment, block, token, *_: (token[segment], 0, 0))
    return pl.pallas_call(
        functools.partial(_merge, layout=layout),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4, grid=(num_segments,), in_specs=[of_segment, page], out_specs=page
        ),
        out_shape=jax.ShapeDtypeStruct(pool.shape, pool.dtype),
        input_output_aliases={5: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan") if interpret else False,
        name="kv_write",
    )(*segments, tokens, pool)


def _find_segments(slot_mapping: Array, num_segments: int, num_blocks: int, block_size: int) -> tuple[Array, ...]:
    """(block, first token, first offset in the block, number of tokens) of each segment, int32 [U].

    Segments that are not live are in the null block and have no tokens.
    """
    num_tokens = slot_mapping.shape[0]
    block, offset = slot_mapping // block_size, slot_mapping % block_size
    live = (slot_mapping >= block_size) & (block < num_blocks)
    starts = live & (block != jnp.concatenate([jnp.full(1, NULL_BLOCK, block.dtype), block[:-1]]))
    segment = jnp.cumsum(starts) - 1  # [T]
    index = jnp.arange(num_segments)
    token = jnp.minimum(jnp.searchsorted(segment, index, side="left", method="compare_all"), num_tokens - 1)
    length = jnp.sum((segment[:, None] == index) & live[:, None], axis=0)
    used = length > 0
    found = jnp.where(used, block[token], NULL_BLOCK), jnp.where(used, token, 0), offset[token], length
    return tuple(array.astype(jnp.int32) for array in found)


def _merge(block_ref, token_ref, first_ref, length_ref, tokens_ref, old_ref, new_ref, *, layout: MergedRowsLayout):
    """Grid step u: the page of segment u with its tokens in their slots."""
    segment = pl.program_id(0)
    slot = lax.broadcasted_iota(jnp.int32, (layout.block_size, layout.lanes), 0)
    new_ref[...] = old_ref[...]

    def put(index, nothing):
        for head in range(tokens_ref.shape[1]):
            rows = pl.ds(head * layout.block_size, layout.block_size)
            token = jnp.broadcast_to(tokens_ref[index, pl.ds(head, 1)], slot.shape)
            new_ref[0, rows] = jnp.where(slot == first_ref[segment] + index, token, new_ref[0, rows])
        return nothing

    lax.fori_loop(0, length_ref[segment], put, jnp.int32(0))
