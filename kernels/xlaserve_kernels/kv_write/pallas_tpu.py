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

from xlaserve_kernels.paged_attention.layout import NULL_BLOCK, KVPool
from xlaserve_kernels.paged_attention.merged_rows import LANES, MergedRowsLayout


@functools.partial(jax.jit, static_argnames=("layout", "interpret"))  # memory spaces are chosen in compiled code only
def kv_write_pallas_tpu(
    pool: KVPool,
    keys: Array,
    values: Array,
    slot_mapping: Array,
    query_start_loc: Array,
    *,
    layout: MergedRowsLayout,
    interpret: bool = False,
) -> KVPool:
    """See api.py for the arguments; `interpret` simulates the kernel on a CPU and raises on a race, for tests."""
    num_tokens, num_rows = keys.shape[0], query_start_loc.shape[0] - 1
    longest = min(num_tokens, layout.block_size)
    # A row has n // block_size whole blocks at most, and a partly written one at either end.
    num_segments = min(num_tokens, num_tokens // layout.block_size + 2 * num_rows)
    segments = _find_segments(slot_mapping, num_segments, pool.pages.shape[0], layout.block_size)

    def of_segment(array: Array) -> pl.BlockSpec:
        shape = tuple(map(pl.Element, (longest, *array.shape[1:])))
        return pl.BlockSpec(shape, lambda segment, block, token, *_: (token[segment], 0, 0))

    def page(array: Array) -> pl.BlockSpec:
        return pl.BlockSpec((1, *array.shape[1:]), lambda segment, block, *_: (block[segment], 0, 0))

    # Padded, for the last segment's read must not leave the array.
    tokens = jax.tree.map(lambda x: jnp.pad(x, ((0, longest - 1), (0, 0), (0, 0))), layout.merge(keys, values))
    pages = jax.tree.map(page, pool)
    first_of_pool = len(segments) + len(jax.tree.leaves(tokens))
    # The pool is kept in HBM: XLA would move one that fits into VMEM there, whole, and back.
    (written,) = pl.pallas_call(
        functools.partial(_merge, layout=layout),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(segments),
            grid=(num_segments,),
            in_specs=[jax.tree.map(of_segment, tokens), pages],
            out_specs=(pages,),
        ),
        out_shape=(jax.tree.map(lambda x: pltpu.HBM(x.shape, x.dtype), pool),),
        input_output_aliases={first_of_pool + index: index for index in range(len(jax.tree.leaves(pool)))},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan") if interpret else False,
        name="kv_write",
    )(*segments, tokens, jax.tree.map(lambda x: pltpu.with_memory_space_constraint(x, pltpu.HBM), pool))
    return written


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


def _merge(block_ref, token_ref, first_ref, length_ref, tokens, old, new, *,
           layout: MergedRowsLayout):  # fmt: skip
    """Grid step u: the page of segment u with its tokens in their slots. tokens, old, new: KVPools of references."""
    segment = pl.program_id(0)
    slot = lax.broadcasted_iota(jnp.int32, (layout.block_size, layout.lanes), 0)
    scale_slot = lax.broadcasted_iota(jnp.int32, (layout.scale_rows, LANES), 1) & (layout.block_size - 1)
    for changed, read in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        changed[...] = read[...]

    def put(index, nothing):
        place = first_ref[segment] + index
        for head in range(tokens.pages.shape[1]):
            rows = pl.ds(head * layout.block_size, layout.block_size)
            token = jnp.broadcast_to(tokens.pages[index, pl.ds(head, 1)], slot.shape)
            new.pages[0, rows] = jnp.where(slot == place, token, new.pages[0, rows])
        if new.scales is not None:
            new.scales[0] = jnp.where(scale_slot == place, tokens.scales[index], new.scales[0])
        return nothing

    lax.fori_loop(0, length_ref[segment], put, jnp.int32(0))
