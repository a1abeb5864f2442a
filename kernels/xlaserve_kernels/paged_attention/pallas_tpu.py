"""Paged attention for TPUs in Pallas (Mosaic): one walk over the flat list of live tiles, its copies ahead of it.

A tile is one query block times one chunk of keys of its row. Tiles of one query block are neighbours, so its running
softmax stays in VMEM and nothing is reduced afterwards. Grid step b handles query block b; queries and outputs come and
go by Pallas's own pipeline. The pages are copied by hand, across the borders of grid steps:

    tile            t - 1          t              t + 1          t + 2
    block table                                                  HBM -> SMEM
    pages                                         HBM -> VMEM
    products                       MXU

Block tables stay in HBM, so they may have any size: a tile needs one page of 128 entries. Of the pages of a chunk only
those with live keys are copied.

Letters: T tokens, R rows, N query heads, K kv heads, g = N / K, H head_dim, L lanes, W table width, Q query blocks,
C keys of a chunk, B blocks of a chunk.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlaserve_kernels.paged_attention.layout import NULL_BLOCK, KVPool
from xlaserve_kernels.paged_attention.merged_rows import LANES, MergedRowsLayout
from xlaserve_kernels.paged_attention.query_blocks import MASKED, QueryBlocks, find_query_blocks
from xlaserve_kernels.products import dot, dot_transposed
from xlaserve_kernels.quantization import scaled_dtype

_ROWS = 128  # of a prefill tile's products, per kv head: queries times padded group
_FEWEST_ROWS = 16  # a tile of bfloat16; what a decode's products have
_FETCH_BYTES = 512 * 1024  # aimed at for a chunk: two in flight hide about 1 us of latency at 800 GB/s
_CHUNKS = (128, 1024)  # fewest and most keys
_VMEM_LIMIT = 48 * 2**20  # bytes


@dataclass(frozen=True)
class Sizes:
    """What the kernel is specialised on. Row r of a query block's products is query r // padded_group."""

    padded_group: int  # g to the next power of two
    query_block: int  # Bq, tokens
    rows: int  # of the products of one kv head
    chunk_blocks: int  # B, a divisor of 128
    layout: MergedRowsLayout
    sliding_window: int | None
    soft_cap: float | None

    @property
    def chunk(self) -> int:
        return self.chunk_blocks * self.layout.block_size


def paged_attention_pallas_tpu(
    q: Array,
    kv_pool: KVPool,
    block_tables: Array,
    query_start_loc: Array,
    seq_lens: Array,
    sinks: Array | None,
    *,
    layout: MergedRowsLayout,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    interpret: bool = False,
) -> Array:
    """See api.py for the arguments; `interpret` simulates the kernel on a CPU and raises on a race, for tests.

    Returns [T, N, H] in q's dtype.
    """
    num_tokens, num_heads, _ = q.shape
    group = num_heads // layout.num_kv_heads
    sizes = choose_sizes(
        layout, group=group, decodes=num_tokens <= seq_lens.shape[0], sliding_window=sliding_window, soft_cap=soft_cap
    )
    blocks = find_query_blocks(
        query_start_loc,
        seq_lens,
        num_tokens=num_tokens,
        query_block=sizes.query_block,
        chunk=sizes.chunk,
        sliding_window=sliding_window,
    )
    queries = _group_queries(q, blocks, scale, sizes)
    out = _call(queries, kv_pool, block_tables, _spread_sinks(sinks, group, sizes), blocks, sizes, interpret)
    return _ungroup(out, blocks, q, sizes)


def choose_sizes(
    layout: MergedRowsLayout, *, group: int, decodes: bool, sliding_window: int | None, soft_cap: float | None
) -> Sizes:
    """A chunk is a power of two of blocks, of about half a MiB."""
    padded_group = pl.next_power_of_2(group)
    query_block = 1 if decodes else max(1, _ROWS // padded_group)
    fewest, most = (max(1, tokens // pl.next_power_of_2(layout.block_size)) for tokens in _CHUNKS)
    return Sizes(
        padded_group=padded_group,
        query_block=query_block,
        rows=max(_FEWEST_ROWS, query_block * padded_group),
        chunk_blocks=min(most, max(fewest, pl.next_power_of_2(_FETCH_BYTES // layout.block_bytes))),
        layout=layout,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
    )


def _group_queries(q: Array, blocks: QueryBlocks, scale: float, sizes: Sizes) -> Array:
    """q [T, N, H], scaled, as [Q, K, rows, L]: one kv head's queries of a block below each other, padded with zeros."""
    num_tokens, _, head_dim = q.shape
    kv_heads, num_blocks = sizes.layout.num_kv_heads, blocks.token.shape[0]
    q = (q.astype(jnp.float32) * scale).astype(q.dtype).reshape(num_tokens, kv_heads, -1, head_dim)
    padding = ((0, 0), (0, 0), (0, sizes.padded_group - q.shape[2]), (0, sizes.layout.lanes - head_dim))
    q = jnp.pad(q, padding)[:, None]  # [T, 1, K, padded group, L]
    if sizes.query_block > 1:
        token = jnp.minimum(blocks.token[:, None] + jnp.arange(sizes.query_block), num_tokens - 1)
        q = q[token, 0]  # [Q, Bq, K, padded group, L]
    q = q.swapaxes(1, 2).reshape(num_blocks, kv_heads, -1, sizes.layout.lanes)
    return jnp.pad(q, ((0, 0), (0, 0), (0, sizes.rows - q.shape[2]), (0, 0)))


def _ungroup(out: Array, blocks: QueryBlocks, q: Array, sizes: Sizes) -> Array:
    """out [Q, K, rows, L] as [T, N, H]; zeros for tokens of no row."""
    num_tokens, num_heads, head_dim = q.shape
    kv_heads, first = sizes.layout.num_kv_heads, sizes.layout.first_value_lane
    out = out[:, :, : sizes.query_block * sizes.padded_group, first : first + head_dim]
    out = out.reshape(out.shape[0], kv_heads, sizes.query_block, sizes.padded_group, head_dim)
    out = out[:, :, :, : num_heads // kv_heads].swapaxes(1, 2)  # [Q, Bq, K, g, H]
    if sizes.query_block > 1:
        token = jnp.arange(num_tokens)
        starts = jnp.where(blocks.length > 0, blocks.token, num_tokens)  # ascending
        block = jnp.maximum(jnp.searchsorted(starts, token, side="right", method="compare_all") - 1, 0)
        offset = token - starts[block]
        live = (offset >= 0) & (offset < blocks.length[block])
        out = jnp.where(live[:, None, None, None], out[block, jnp.clip(offset, 0, sizes.query_block - 1)], 0)
    return out.reshape(q.shape)


def _spread_sinks(sinks: Array | None, group: int, sizes: Sizes) -> tuple[Array, Array]:
    """Running maximum and sum before any key, [K, rows, 128]: a sink is a key that has no value."""
    shape = (sizes.layout.num_kv_heads, sizes.rows, LANES)
    if sinks is None:
        return jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32)
    in_group = jnp.minimum(jnp.arange(sizes.rows) % sizes.padded_group, group - 1)
    spread = sinks.reshape(-1, group)[:, in_group]  # [K, rows]
    return jnp.broadcast_to(spread[..., None], shape), jnp.ones(shape, jnp.float32)


def _call(q: Array, kv_pool: KVPool, block_tables: Array, start: tuple[Array, Array], blocks: QueryBlocks,
          sizes: Sizes, interpret: bool) -> Array:  # fmt: skip
    num_blocks, kv_heads, rows, lanes = q.shape
    num_rows, width = block_tables.shape
    pages = pl.cdiv(width, LANES)
    tables = jnp.pad(block_tables, ((0, 0), (0, pages * LANES - width))).reshape(num_rows, pages, 1, LANES)
    before = jnp.concatenate([blocks.tiles_before, blocks.tiles_before[-1:]])  # [Q + 2]
    of_block = pl.BlockSpec((1, kv_heads, rows, lanes), lambda block, *_: (block, 0, 0, 0))
    the_same = pl.BlockSpec(start[0].shape, lambda block, *_: (0, 0, 0))
    in_place = pl.BlockSpec(memory_space=pltpu.MemorySpace.HBM)
    return pl.pallas_call(
        functools.partial(_attend, sizes=sizes),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(num_blocks,),
            in_specs=[in_place, (the_same, the_same), of_block, jax.tree.map(lambda _: in_place, kv_pool)],
            out_specs=of_block,
            scratch_shapes=[
                pltpu.SMEM((2, 1, LANES), jnp.int32),
                jax.tree.map(lambda x: pltpu.VMEM((2, sizes.chunk_blocks, *x.shape[1:]), x.dtype), kv_pool),
                pltpu.VMEM((kv_heads, rows, LANES), jnp.float32),
                pltpu.VMEM((kv_heads, rows, LANES), jnp.float32),
                pltpu.VMEM((kv_heads, rows, lanes), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=_VMEM_LIMIT),
        interpret=pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan") if interpret else False,
        name="paged_attention",
    )(before, blocks.row, blocks.first_chunk, blocks.position, blocks.length, tables, start, q, kv_pool)


def _attend(before_ref, row_ref, first_chunk_ref, position_ref, length_ref, tables_ref, start_refs, q_ref, pool_refs,
            out_ref, table_buffer, buffers, max_ref, sum_ref, acc_ref, table_sems, kv_sems, *,
            sizes: Sizes):  # fmt: skip
    """Grid step b: all tiles of query block b."""
    block = pl.program_id(0)
    num_tiles = before_ref[before_ref.shape[0] - 1]
    block_size, chunk = sizes.layout.block_size, sizes.chunk

    def place(tile):
        """(query block, chunk) of one of the next tiles: at most two blocks on, as each has a tile at least."""
        owner = block + (tile >= before_ref[block + 1]).astype(jnp.int32)
        owner += (tile >= before_ref[block + 2]).astype(jnp.int32)
        return owner, first_chunk_ref[owner] + tile - before_ref[owner]

    def table_copy(tile):
        owner, index = place(tile)
        page = lax.div(index * sizes.chunk_blocks, LANES)
        slot = lax.rem(tile, 2)
        return pltpu.make_async_copy(tables_ref.at[row_ref[owner], page], table_buffer.at[slot], table_sems.at[slot])

    def live_columns(tile):
        """(first column of the chunk of `tile`, first and end of its columns that have live keys)"""
        owner, index = place(tile)
        first, end = index * sizes.chunk_blocks, position_ref[owner] + length_ref[owner]
        low = first
        if sizes.sliding_window is not None:
            low = jnp.maximum(low, lax.div(position_ref[owner] - sizes.sliding_window + 1, block_size))
        return first, low, jnp.minimum(first + sizes.chunk_blocks, lax.div(end + block_size - 1, block_size))

    def for_each_page(tile, act, source):
        """Calls act on the copies of each page of `tile` that has live keys, the pool's block source(column)."""
        slot, (first, low, high) = lax.rem(tile, 2), live_columns(tile)

        def each(column, nothing):
            for pool, buffer in zip(jax.tree.leaves(pool_refs), jax.tree.leaves(buffers), strict=True):
                page = pool.at[source(column)]
                act(pltpu.make_async_copy(page, buffer.at[slot, column - first], kv_sems.at[slot]))
            return nothing

        lax.fori_loop(low, high, each, jnp.int32(0))

    def clear_other_pages(tile):
        """Those of the chunk that are not copied hold another row's: its NaN, times weights of 0, would be ours."""
        slot, (first, low, high) = lax.rem(tile, 2), live_columns(tile)

        def clear(column, nothing):
            for buffer in jax.tree.leaves(buffers):
                page = buffer.at[slot, column - first]
                page[...] = jnp.zeros_like(page)
            return nothing

        lax.fori_loop(first, low, clear, jnp.int32(0))
        lax.fori_loop(high, first + sizes.chunk_blocks, clear, jnp.int32(0))

    def start_pages(tile):
        table_copy(tile).wait()
        for_each_page(
            tile, lambda copy: copy.start(), lambda column: table_buffer[lax.rem(tile, 2), 0, lax.rem(column, LANES)]
        )

    def wait_for_pages(tile):
        # Only the sizes of the copies matter here; the table's buffer has the next tile's entries already.
        for_each_page(tile, lambda copy: copy.wait(), lambda column: NULL_BLOCK)

    @pl.when((block == 0) & (num_tiles > 0))
    def _():
        table_copy(0).start()
        pl.when(num_tiles > 1)(lambda: table_copy(1).start())
        start_pages(0)

    def attend_tile(tile, nothing):
        pl.when(tile + 1 < num_tiles)(lambda: start_pages(tile + 1))
        pl.when(tile + 2 < num_tiles)(lambda: table_copy(tile + 2).start())
        clear_other_pages(tile)
        wait_for_pages(tile)
        slot, first_key = lax.rem(tile, 2), (first_chunk_ref[block] + tile - before_ref[block]) * chunk
        end = position_ref[block] + length_ref[block]

        def clear_slots(key, dead):
            """Zeroes the slots of key's page that are dead(offset): they may hold NaN."""
            page = slot, lax.div(key - first_key, block_size)
            for axis, buffer in enumerate(jax.tree.leaves(buffers)):  # tokens are rows of pages, lanes of scales
                _clear(buffer.at[page], dead, axis, block_size)

        @pl.when((end < first_key + chunk) & (lax.rem(end, block_size) > 0))
        def _():
            clear_slots(end, lambda offset: offset >= lax.rem(end, block_size))

        if sizes.sliding_window is not None:
            oldest = position_ref[block] - sizes.sliding_window + 1  # that the first query sees

            @pl.when((oldest > first_key) & (lax.rem(oldest, block_size) > 0))
            def _():
                clear_slots(oldest, lambda offset: offset < lax.rem(oldest, block_size))

        pages = jax.tree.map(lambda buffer: buffer.at[slot], buffers)
        attend = functools.partial(
            _attend_chunk, pages, first_key, position_ref[block], q_ref, max_ref, sum_ref, acc_ref, sizes
        )
        if sizes.rows == _FEWEST_ROWS:
            attend(_FEWEST_ROWS)
        else:
            few = length_ref[block] * sizes.padded_group <= _FEWEST_ROWS
            pl.when(few)(lambda: attend(_FEWEST_ROWS))
            pl.when(jnp.logical_not(few))(lambda: attend(sizes.rows))
        return nothing

    max_ref[...], sum_ref[...] = start_refs[0][...], start_refs[1][...]
    acc_ref[...] = jnp.zeros_like(acc_ref)
    lax.fori_loop(before_ref[block], before_ref[block + 1], attend_tile, jnp.int32(0))
    for head in range(sizes.layout.num_kv_heads):
        out = acc_ref[head] / jnp.maximum(sum_ref[head, :, :1], 1e-30)
        out_ref[0, head] = out.astype(out_ref.dtype)


def _clear(page_ref, dead, axis: int, block_size: int) -> None:
    """Zeroes the slots of a page, whose tokens lie along `axis`, that are dead(offset)."""
    offset = lax.rem(lax.broadcasted_iota(jnp.int32, page_ref.shape, axis), block_size)
    page = page_ref[...]
    page_ref[...] = jnp.where(dead(offset), jnp.zeros_like(page), page)


def _attend_chunk(pages: KVPool, first_key, position, q_ref, max_ref, sum_ref, acc_ref, sizes: Sizes,
                  rows: int) -> None:  # fmt: skip
    """Joins one chunk of keys to the running softmax of the first `rows` rows of every kv head."""
    shape = (rows, sizes.chunk)
    shift = sizes.padded_group.bit_length() - 1
    query = position + (lax.broadcasted_iota(jnp.int32, shape, 0) >> shift)
    key = first_key + lax.broadcasted_iota(jnp.int32, shape, 1)
    visible = key <= query
    if sizes.sliding_window is not None:
        visible &= key > query - sizes.sliding_window
    scales = None if pages.scales is None else _spread_scales(pages.scales, sizes)
    for head in range(sizes.layout.num_kv_heads):
        keys, values = sizes.layout.head_pages(pages.pages, head)
        q = q_ref[0, head, :rows]
        scores = dot_transposed(q, keys.astype(q.dtype))
        if scales is not None:
            scores *= scales[2 * head]
        if sizes.soft_cap is not None:
            scores = sizes.soft_cap * jnp.tanh(scores / sizes.soft_cap)
        scores = jnp.where(visible, scores, MASKED)
        old_max = max_ref[head, :rows]  # [rows, 128], all lanes equal
        new_max = jnp.maximum(old_max, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.where(visible, jnp.exp(scores - new_max[:, :1]), 0.0)
        decay = jnp.exp(old_max - new_max)
        max_ref[head, :rows] = new_max
        sum_ref[head, :rows] = sum_ref[head, :rows] * decay + jnp.sum(weights, axis=1, keepdims=True)
        dtype = q.dtype
        if scales is not None:
            weights, dtype = weights * scales[2 * head + 1], scaled_dtype(dtype)
        products = dot(weights.astype(dtype), values.astype(dtype))
        acc_ref[head, :rows] = acc_ref[head, :rows] * decay[:, :1] + products


def _spread_scales(scales_ref, sizes: Sizes) -> list[Array]:
    """Scales [B, scale_rows, 128] of a chunk as rows [1, C]: of a head's keys, then of its values, head by head.

    Row c of `own` keeps the lanes that belong to key c; the product gathers those of one part. Exact: every sum has one
    term, and bfloat16 holds the scales.
    """
    block_size = sizes.layout.block_size
    shift, parts = block_size.bit_length() - 1, LANES // block_size
    shape = (sizes.chunk, LANES)
    lane = lax.broadcasted_iota(jnp.int32, shape, 1)
    own = (lane & (block_size - 1)) == (lax.broadcasted_iota(jnp.int32, shape, 0) & (block_size - 1))
    few = (_FEWEST_ROWS, LANES)
    part = (lax.broadcasted_iota(jnp.int32, few, 1) >> shift) == lax.broadcasted_iota(jnp.int32, few, 0)
    rows = []
    for index in range(sizes.layout.scale_rows):
        scales = scales_ref[:, index : index + 1, :]  # [B, 1, 128]
        scales = jnp.broadcast_to(scales, (sizes.chunk_blocks, block_size, LANES)).reshape(shape)
        spread = jnp.where(own, scales, 0.0).astype(jnp.bfloat16)
        gathered = dot_transposed(part.astype(jnp.bfloat16), spread)  # [16, C]
        rows += [gathered[i : i + 1] for i in range(parts)]
    return rows
