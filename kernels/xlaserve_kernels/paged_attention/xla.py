"""Paged attention in XLA operations, over a flat list of live tiles. Runs anywhere; the default on CPU.

A *query block* is up to Bq consecutive queries of one row, a *tile* one query block times one chunk of C keys of its
context. Only live tiles are computed, G at a time in a loop whose trip count is known only on the device, so the cost
follows the live tokens: neither the longest row nor the width of the block tables matters.

Letters: T tokens, R rows, N query heads, K kv heads, g = N / K, H head_dim, W table width, Q query blocks.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from xlaserve_kernels.cpu_features import multiplies_bfloat16
from xlaserve_kernels.paged_attention.layout import BlockMajorLayout, KVPool
from xlaserve_kernels.paged_attention.query_blocks import MASKED, find_query_blocks
from xlaserve_kernels.quantization import scaled_dtype, widen


@dataclass(frozen=True)
class TileSizes:
    query_block: int  # Bq, tokens
    chunk: int  # C, tokens; a multiple of block_size
    tiles_per_step: int  # G


def choose_tiles(num_tokens: int, num_rows: int, block_size: int) -> TileSizes:
    """Small batches decode, one query a row; large ones hold prefill chunks, whose queries share their keys' reads.

    Measured on a CPU with 9 query heads and 3 kv heads of 64: longer query blocks make a prompt's own attention faster
    by up to a third, but the decodes beside it pay for the whole block.
    """
    chunk = max(block_size, 128 // block_size * block_size)
    query_block = 1 if num_tokens <= num_rows else 8
    return TileSizes(query_block, chunk, tiles_per_step=min(8, max(4, num_tokens)))


def paged_attention_xla(
    q: Array,
    kv_pool: KVPool,
    block_tables: Array,
    query_start_loc: Array,
    seq_lens: Array,
    sinks: Array | None = None,
    *,
    layout: BlockMajorLayout,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Array:
    """See api.py for the arguments. Returns [T, N, H] in q's dtype."""
    num_tokens, num_heads, head_dim = q.shape
    kv_heads = layout.num_kv_heads
    group = num_heads // kv_heads
    sizes = choose_tiles(num_tokens, seq_lens.shape[0], layout.block_size)
    blocks = find_query_blocks(
        query_start_loc,
        seq_lens,
        num_tokens=num_tokens,
        query_block=sizes.query_block,
        chunk=sizes.chunk,
        sliding_window=sliding_window,
    )
    num_blocks = blocks.token.shape[0]

    # Queries by block, the g heads of a kv head beside the block's tokens: [Q + 1, K, g * Bq, H]. Row Q is a dummy.
    token = jnp.minimum(blocks.token[:, None] + jnp.arange(sizes.query_block), num_tokens - 1)  # [Q, Bq]
    grouped = (q.astype(jnp.float32) * scale).astype(q.dtype)[token]  # [Q, Bq, N, H]
    grouped = grouped.reshape(num_blocks, sizes.query_block, kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(num_blocks, kv_heads, group * sizes.query_block, head_dim)

    def step(index, carry):
        tile = index * sizes.tiles_per_step + jnp.arange(sizes.tiles_per_step)
        live = tile < blocks.tiles_before[-1]
        block = jnp.searchsorted(blocks.tiles_before[1:], tile, side="right", method="compare_all")  # [G]
        block = jnp.where(live, block, num_blocks)
        partial = _attend_tiles(tile, block, live, blocks, grouped, kv_pool, block_tables, layout, sizes,
                                sliding_window, soft_cap)  # fmt: skip
        return _merge(carry, block, partial)

    rows = group * sizes.query_block
    carry = (
        jnp.full((num_blocks + 1, kv_heads, rows), MASKED, jnp.float32),
        jnp.zeros((num_blocks + 1, kv_heads, rows), jnp.float32),
        jnp.zeros((num_blocks + 1, kv_heads, rows, head_dim), jnp.float32),
    )
    num_steps = (blocks.tiles_before[-1] + sizes.tiles_per_step - 1) // sizes.tiles_per_step
    maximum, total, acc = lax.fori_loop(0, num_steps, step, carry)
    if sinks is not None:  # infinite where the sink outweighs all keys, or there are none: the output is zero
        total += jnp.exp(jnp.repeat(sinks.reshape(kv_heads, group), sizes.query_block, axis=1) - maximum)
    out = acc[:-1] / jnp.maximum(total[:-1], 1e-30)[..., None]
    out = out.reshape(num_blocks, kv_heads, group, sizes.query_block, head_dim).transpose(0, 3, 1, 2, 4)
    out = out.reshape(num_blocks, sizes.query_block, num_heads, head_dim).astype(q.dtype)
    live = jnp.arange(sizes.query_block) < blocks.length[:, None]
    place = jnp.where(live, token, num_tokens)  # queries of no row are dropped
    return jnp.zeros_like(q).at[place.reshape(-1)].set(out.reshape(-1, num_heads, head_dim), mode="drop")


def _attend_tiles(tile, block, live, blocks, grouped, kv_pool, block_tables, layout, sizes, sliding_window, soft_cap):
    """Partial softmax of G tiles: maximum [G, K, g*Bq], sum of exponentials, and weighted values [G, K, g*Bq, H]."""
    block = jnp.minimum(block, blocks.token.shape[0] - 1)  # dead tiles read some block; all their keys are masked
    chunk = jnp.where(live, blocks.first_chunk[block] + tile - blocks.tiles_before[block], 0)
    columns = chunk[:, None] * (sizes.chunk // layout.block_size) + jnp.arange(sizes.chunk // layout.block_size)
    width = block_tables.shape[1]
    block_ids = block_tables[blocks.row[block][:, None], jnp.minimum(columns, width - 1)]
    keys, values = layout.read_pages(kv_pool, block_ids)  # [G, K, C, H]
    scales = layout.read_scales(kv_pool, block_ids)  # [G, K, C] each

    key_position = chunk[:, None] * sizes.chunk + jnp.arange(sizes.chunk)  # [G, C]
    query_position = blocks.position[block][:, None] + jnp.arange(sizes.query_block)  # [G, Bq]
    visible = key_position[:, None, :] <= query_position[:, :, None]  # [G, Bq, C]
    if sliding_window is not None:
        visible &= key_position[:, None, :] > query_position[:, :, None] - sliding_window
    visible &= live[:, None, None]
    group = grouped.shape[2] // sizes.query_block
    visible = jnp.tile(visible, (1, group, 1))[:, None]  # [G, 1, g * Bq, C]

    scores = _einsum("gkqh,gkch->gkqc", grouped[block], keys)
    if scales is not None:
        scores *= scales[0][:, :, None]
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = jnp.where(visible, scores, MASKED)
    maximum = scores.max(axis=-1)
    weights = jnp.where(visible, jnp.exp(scores - maximum[..., None]), 0.0)
    total = weights.sum(axis=-1)
    # Slots that no query sees may hold anything, NaN included, and 0 * NaN is NaN.
    first, last = blocks.position[block], blocks.position[block] + blocks.length[block]
    seen = key_position < last[:, None]  # [G, C]
    if sliding_window is not None:
        seen &= key_position > first[:, None] - sliding_window
    values = jnp.where(seen[:, None, :, None], values, 0)
    weights_dtype = values.dtype
    if scales is not None:
        weights *= jnp.where(seen[:, None], scales[1], 0)[:, :, None]
        weights_dtype = scaled_dtype(grouped.dtype)
    return maximum, total, _einsum("gkqc,gkch->gkqh", weights.astype(weights_dtype), values)


def _einsum(subscripts: str, a: Array, b: Array) -> Array:
    """Accumulated in float32; `b` may be quantised, and is not scaled.

    On a CPU that cannot multiply bfloat16, float32 is a fifth faster; and int8 converts to bfloat16 at a quarter of the
    speed.
    """
    quantized = not jnp.issubdtype(b.dtype, jnp.floating)

    def product(a, b):
        return jnp.einsum(subscripts, a, widen(b, a.dtype) if quantized else b, preferred_element_type=jnp.float32)

    def widened(a, b):
        return product(a.astype(jnp.float32), b if quantized else b.astype(jnp.float32))

    if a.dtype != jnp.float32 and (quantized or (a.dtype == jnp.bfloat16 and not multiplies_bfloat16())):
        return lax.platform_dependent(a, b, cpu=widened, default=product)
    return product(a, b)


def _merge(carry, block, partial):
    """Online softmax: joins the G tiles to the running state of their query blocks.

    Tiles of one query block are neighbours, so they are first joined among themselves into segments of distinct blocks.
    """
    maximum, total, acc = partial
    size = block.shape[0]
    starts = jnp.concatenate([jnp.ones(1, bool), block[1:] != block[:-1]])
    segment = jnp.cumsum(starts) - 1  # [G]
    dummy = carry[0].shape[0] - 1
    owner = jnp.full(size, dummy).at[segment].set(block)  # [G], the query block of each segment

    old_max, old_total, old_acc = (x[owner] for x in carry)
    new_max = jnp.maximum(old_max, jax.ops.segment_max(maximum, segment, size, indices_are_sorted=True))
    tile_scale = jnp.exp(maximum - new_max[segment])
    old_scale = jnp.exp(old_max - new_max)
    new_total = old_total * old_scale + jax.ops.segment_sum(total * tile_scale, segment, size, indices_are_sorted=True)
    summed = jax.ops.segment_sum(acc * tile_scale[..., None], segment, size, indices_are_sorted=True)
    new_acc = old_acc * old_scale[..., None] + summed
    return tuple(x.at[owner].set(new) for x, new in zip(carry, (new_max, new_total, new_acc), strict=True))
