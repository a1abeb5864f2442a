"""Paged attention for GPUs in Pallas (Triton): flash-decoding over a flat list of live tiles, then a reduction.

A tile is one query block times one chunk of keys of its row. The list of all live tiles is cut into P equal runs, so no
program's work depends on the longest row. Program (p, k) walks run p for kv head k, one query block at a time:

    tiles    | block 0     | block 1 | block 2                        | 3 |      of one kv head
    runs     |    p = 0       |    p = 1       |    p = 2       |   p = 3       |
    partials  (0,0)       (1,0)(1,1)(2,1)       (2,2)            (2,3)  (3,3)

Each piece leaves its running maximum, sum and weighted values in slot b + p, which no other piece has. The reduction,
one program per query block and kv head, joins a block's slots in order: the result does not vary from run to run.

Letters: T tokens, R rows, N query heads, K kv heads, g = N / K, H head_dim, W table width, Q query blocks, C chunk.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlaserve_kernels.paged_attention.layout import BlockMajorLayout, KVPool
from xlaserve_kernels.paged_attention.query_blocks import MASKED, find_query_blocks
from xlaserve_kernels.quantization import scaled_dtype, widen

_CHUNK = 64  # keys of a tile, at least
_ROWS = 64  # rows of a prefill tile's products, if the group fits: queries times heads
_FEWEST_ROWS = 16  # of a Triton product
_PROGRAMS = 528  # four for each multiprocessor of an H100
_INTERPRETED_PROGRAMS = 8  # they run one after another


@dataclass(frozen=True)
class Sizes:
    """What the two kernels are specialised on. Row r of a query block's products is query r % Bq of head r // Bq."""

    group: int  # g
    query_block: int  # Bq, tokens
    rows: int  # products' rows, a power of two
    chunk: int  # C, tokens, a power of two
    head_dim: int  # H
    padded_dim: int  # H to the next power of two
    num_runs: int  # P
    block_size: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None

    @property
    def num_warps(self) -> int:
        """Four, or eight where the running sums of wide heads would spill from the registers of four."""
        return 8 if self.rows * self.padded_dim > 64 * 128 else 4


def paged_attention_pallas_gpu(
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
    interpret: bool = False,
) -> Array:
    """See api.py for the arguments; `interpret` runs the kernels on any platform, for tests.

    The block size is a power of two. Returns [T, N, H] in q's dtype.
    """
    num_tokens, num_heads, head_dim = q.shape
    kv_heads = layout.num_kv_heads
    sizes = choose_sizes(
        layout, group=num_heads // kv_heads, decodes=num_tokens <= seq_lens.shape[0], scale=scale,
        sliding_window=sliding_window, soft_cap=soft_cap, interpret=interpret,
    )  # fmt: skip
    blocks = find_query_blocks(
        query_start_loc,
        seq_lens,
        num_tokens=num_tokens,
        query_block=sizes.query_block,
        chunk=sizes.chunk,
        sliding_window=sliding_window,
    )
    num_blocks, before = blocks.token.shape[0], blocks.tiles_before
    run_length = jnp.maximum(1, pl.cdiv(before[-1], sizes.num_runs))
    starts = jnp.arange(sizes.num_runs) * run_length
    ends = jnp.minimum(starts + run_length, before[-1])
    find_block = functools.partial(jnp.searchsorted, before[1:], side="right", method="compare_all")
    first = find_block(starts).astype(jnp.int32)  # [P], the block of each run's first tile
    end = jnp.where(starts < ends, find_block(ends - 1) + 1, first).astype(jnp.int32)  # [P], after that of its last

    place = (blocks.token, blocks.length)
    slots = num_blocks + sizes.num_runs
    partials = pl.pallas_call(
        functools.partial(_attend, sizes=sizes),
        grid=(sizes.num_runs, kv_heads),
        out_shape=(
            jax.ShapeDtypeStruct((slots, kv_heads, sizes.rows), jnp.float32),
            jax.ShapeDtypeStruct((slots, kv_heads, sizes.rows), jnp.float32),
            jax.ShapeDtypeStruct((slots, kv_heads, sizes.rows, head_dim), jnp.float32),
        ),
        compiler_params=plgpu.CompilerParams(num_warps=sizes.num_warps, num_stages=3),
        interpret=interpret,
        name="paged_attention",
    )(run_length[None], first, end, before, *place, blocks.position, blocks.row, blocks.first_chunk, block_tables, q,
      kv_pool)  # fmt: skip
    return pl.pallas_call(
        functools.partial(_reduce, sizes=sizes),
        grid=(num_blocks, kv_heads),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        input_output_aliases={7 + (sinks is not None): 0},  # tokens of no row stay zero
        compiler_params=plgpu.CompilerParams(num_warps=sizes.num_warps),
        interpret=interpret,
        name="paged_attention_reduce",
    )(run_length[None], before, *place, *partials, sinks, jnp.zeros_like(q))


def choose_sizes(layout: BlockMajorLayout, *, group: int, decodes: bool, interpret: bool = False, **rest) -> Sizes:
    query_block = 1 if decodes else max(1, _ROWS // pl.next_power_of_2(group))
    return Sizes(
        group=group,
        query_block=query_block,
        rows=max(_FEWEST_ROWS, pl.next_power_of_2(group) * query_block),
        chunk=max(_CHUNK, layout.block_size),
        head_dim=layout.head_dim,
        padded_dim=pl.next_power_of_2(layout.head_dim),
        num_runs=_INTERPRETED_PROGRAMS if interpret else pl.cdiv(_PROGRAMS, layout.num_kv_heads),
        block_size=layout.block_size,
        **rest,
    )


def _attend(run_length_ref, first_ref, end_ref, before_ref, token_ref, length_ref, position_ref, row_ref, chunk_ref,
            tables_ref, q_ref, pool_ref, max_ref, sum_ref, acc_ref, *, sizes: Sizes):  # fmt: skip
    """Walks run p for kv head k. All arrays lie in global memory; what is indexed is loaded."""
    run, head = pl.program_id(0), pl.program_id(1)
    start = run * run_length_ref[0]
    end = start + run_length_ref[0]
    rows, dims = jnp.arange(sizes.rows), jnp.arange(sizes.padded_dim)
    in_head = dims < sizes.head_dim
    value_dtype = q_ref.dtype if pool_ref.scales is None else scaled_dtype(q_ref.dtype)

    def attend_block(block, nothing):
        before, position, length = before_ref[block], position_ref[block], length_ref[block]
        table, first_chunk = row_ref[block], chunk_ref[block]
        token, query_head, live = _queries(token_ref[block], length, head, sizes)
        wanted = live[:, None] & in_head[None, :]
        q = plgpu.load(q_ref.at[token[:, None], query_head[:, None], dims[None, :]], mask=wanted, other=0.0)
        q = (q.astype(jnp.float32) * sizes.scale).astype(q.dtype)
        query_position = position + lax.rem(rows, sizes.query_block)

        def attend_tile(tile, carry):
            old_max, old_sum, acc = carry
            key = (first_chunk + tile - before) * sizes.chunk + jnp.arange(sizes.chunk)
            read = key < position + length  # the rest of the last block was never written
            if sizes.sliding_window is not None:
                read &= key > position - sizes.sliding_window
            column = jnp.minimum(lax.div(key, sizes.block_size), tables_ref.shape[1] - 1)
            page = plgpu.load(tables_ref.at[table, column], mask=read, other=0)
            offset = lax.rem(key, sizes.block_size)

            def load_pages(which):
                place = (page[:, None], which, head, offset[:, None], dims[None, :])
                return plgpu.load(pool_ref.pages.at[place], mask=read[:, None] & in_head[None, :], other=0)

            def load_scales(which):
                return plgpu.load(pool_ref.scales.at[page, which, head, offset], mask=read, other=0.0)

            keys, values = load_pages(0), load_pages(1)
            scores = _dot(q, widen(keys, q.dtype), trans_b=True)  # [rows, C]
            if pool_ref.scales is not None:
                scores *= load_scales(0)[None, :]
            if sizes.soft_cap is not None:
                scores = sizes.soft_cap * jnp.tanh(scores / sizes.soft_cap)
            visible = read[None, :] & (key[None, :] <= query_position[:, None])
            if sizes.sliding_window is not None:
                visible &= key[None, :] > query_position[:, None] - sizes.sliding_window
            scores = jnp.where(visible, scores, MASKED)
            new_max = jnp.maximum(old_max, jnp.max(scores, axis=1))
            weights = jnp.where(visible, jnp.exp(scores - new_max[:, None]), 0.0)
            decay = jnp.exp(old_max - new_max)
            total = old_sum * decay + jnp.sum(weights, axis=1)
            if pool_ref.scales is not None:
                weights *= load_scales(1)[None, :]
            values = widen(values, value_dtype)
            return new_max, total, acc * decay[:, None] + _dot(weights.astype(value_dtype), values)

        low, high = jnp.maximum(start, before), jnp.minimum(end, before_ref[block + 1])
        maximum, total, acc = lax.fori_loop(low, high, attend_tile, _nothing(sizes))
        slot = block + run
        plgpu.store(max_ref.at[slot, head, rows], maximum)
        plgpu.store(sum_ref.at[slot, head, rows], total)
        plgpu.store(acc_ref.at[slot, head, rows[:, None], dims[None, :]], acc, mask=wanted)
        return nothing

    lax.fori_loop(first_ref[run], end_ref[run], attend_block, 0)


def _reduce(run_length_ref, before_ref, token_ref, length_ref, max_ref, sum_ref, acc_ref, sinks_ref, zeros_ref,
            out_ref, *, sizes: Sizes):  # fmt: skip
    """Joins the slots of one query block and kv head, and writes its queries' outputs."""
    block, head = pl.program_id(0), pl.program_id(1)
    low, high, run_length = before_ref[block], before_ref[block + 1], run_length_ref[0]
    rows, dims = jnp.arange(sizes.rows), jnp.arange(sizes.padded_dim)
    token, query_head, live = _queries(token_ref[block], length_ref[block], head, sizes)
    wanted = live[:, None] & (dims < sizes.head_dim)[None, :]

    def join(run, carry):
        old_max, old_sum, acc = carry
        slot = block + run
        maximum = plgpu.load(max_ref.at[slot, head, rows])
        new_max = jnp.maximum(old_max, maximum)
        decay, scale = jnp.exp(old_max - new_max), jnp.exp(maximum - new_max)
        new_acc = plgpu.load(acc_ref.at[slot, head, rows[:, None], dims[None, :]], mask=wanted, other=0.0)
        total = old_sum * decay + plgpu.load(sum_ref.at[slot, head, rows]) * scale
        return new_max, total, acc * decay[:, None] + new_acc * scale[:, None]

    end = jnp.where(low < high, lax.div(high - 1, run_length) + 1, lax.div(low, run_length))
    maximum, total, acc = lax.fori_loop(lax.div(low, run_length), end, join, _nothing(sizes))
    if sinks_ref is not None:  # infinite where the sink outweighs all keys: the output is zero
        total += jnp.exp(plgpu.load(sinks_ref.at[query_head], mask=live, other=0.0) - maximum)
    out = (acc / jnp.maximum(total, 1e-30)[:, None]).astype(out_ref.dtype)
    plgpu.store(out_ref.at[token[:, None], query_head[:, None], dims[None, :]], out, mask=wanted)


def _queries(first_token, length, head, sizes: Sizes) -> tuple[Array, Array, Array]:
    """Token, query head and liveness of each row of a query block's products.

    Rows that are not live have places of their own, if need be outside the array: a masked store is a read and a write
    when interpreted, and must not undo another row's.
    """
    rows = jnp.arange(sizes.rows)
    in_group, query = lax.div(rows, sizes.query_block), lax.rem(rows, sizes.query_block)
    live = (in_group < sizes.group) & (query < length)
    return first_token + query, head * sizes.group + in_group, live


def _nothing(sizes: Sizes) -> tuple[Array, Array, Array]:
    """Running maximum, sum and weighted values before any key."""
    rows = jnp.zeros((sizes.rows,), jnp.float32)
    return rows + MASKED, rows, jnp.zeros((sizes.rows, sizes.padded_dim), jnp.float32)


def _dot(a: Array, b: Array, trans_b: bool = False) -> Array:
    """Accumulated in float32; float32 operands are not rounded to TF32."""
    return plgpu.dot(a, b, trans_b=trans_b, allow_tf32=False).astype(jnp.float32)
