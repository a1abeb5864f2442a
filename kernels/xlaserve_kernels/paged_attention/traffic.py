"""The bytes that the attention kernels move to and from HBM, derived from their grids, block specs and copies.

On the host, for a batch whose lengths are known; sinks and plans of a few bytes per row are left out. The tests count
what the interpreted kernels load and find the same.
"""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from xlaserve_kernels.paged_attention import pallas_gpu, pallas_tpu
from xlaserve_kernels.paged_attention.layout import BlockMajorLayout
from xlaserve_kernels.paged_attention.merged_rows import LANES, MergedRowsLayout
from xlaserve_kernels.paged_attention.query_blocks import QueryBlocks, find_query_blocks

_FLOAT32 = 4  # bytes, as int32


@dataclass(frozen=True)
class Traffic:
    """Bytes of one call, all rows and heads. `fetch`: of the pages of a full tile, which are under way together."""

    pages: int  # keys and values with their scales
    tables: int
    queries: int
    outputs: int
    partials: int  # written by one kernel and read by the next
    fetch: int

    @property
    def total(self) -> int:
        return self.pages + self.tables + self.queries + self.outputs + self.partials


def attention_traffic(
    layout: BlockMajorLayout | MergedRowsLayout,
    query_lens: np.ndarray,
    seq_lens: np.ndarray,
    *,
    num_tokens: int,
    num_heads: int,
    q_dtype,
    sliding_window: int | None = None,
    interpret: bool = False,
) -> Traffic:
    """Of the kernel whose layout it is: pallas_tpu or pallas_gpu; query_lens, seq_lens int [R], see reference.py."""
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    find = functools.partial(
        find_query_blocks,
        jnp.asarray(starts, jnp.int32),
        jnp.asarray(seq_lens, jnp.int32),
        num_tokens=num_tokens,
        sliding_window=sliding_window,
    )
    group, decodes = num_heads // layout.num_kv_heads, num_tokens <= len(seq_lens)
    itemsize = np.dtype(q_dtype).itemsize
    if isinstance(layout, MergedRowsLayout):
        sizes = pallas_tpu.choose_sizes(
            layout, group=group, decodes=decodes, sliding_window=sliding_window, soft_cap=None
        )
        return _on_tpu(layout, sizes, find(query_block=sizes.query_block, chunk=sizes.chunk), itemsize)
    sizes = pallas_gpu.choose_sizes(
        layout,
        group=group,
        decodes=decodes,
        scale=1.0,
        sliding_window=sliding_window,
        soft_cap=None,
        interpret=interpret,
    )
    return _on_gpu(layout, sizes, find(query_block=sizes.query_block, chunk=sizes.chunk), itemsize)


def live_block_bytes(
    layout: BlockMajorLayout | MergedRowsLayout, seq_lens: np.ndarray, sliding_window: int | None = None
) -> int:
    """Bytes of the blocks that decodes at these lengths have to see, once each: the least that they can read."""
    first = np.maximum(seq_lens - sliding_window, 0) // layout.block_size if sliding_window else 0
    blocks = np.sum(-(-seq_lens // layout.block_size) - first)
    return int(blocks) * sum(_bytes(part) for part in layout.pool_spec(1) if part is not None)


def _seen(blocks: QueryBlocks, sliding_window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """First key that each live query block sees, and the one after its last."""
    live = np.asarray(blocks.length) > 0
    position, length = np.asarray(blocks.position)[live], np.asarray(blocks.length)[live]
    first = np.zeros_like(position) if sliding_window is None else np.maximum(position - sliding_window + 1, 0)
    return first, position + length


def _on_tpu(layout: MergedRowsLayout, sizes: pallas_tpu.Sizes, blocks: QueryBlocks, itemsize: int) -> Traffic:
    """Whole pages; a page of the table per tile; queries and outputs of every grid step, idle ones too."""
    first, end = _seen(blocks, sizes.sliding_window)
    pages = np.sum(-(-end // layout.block_size) - first // layout.block_size)
    page = sum(_bytes(part) for part in layout.pool_spec(1) if part is not None)
    products = layout.num_kv_heads * sizes.rows * layout.lanes * itemsize
    start = 2 * layout.num_kv_heads * sizes.rows * LANES * _FLOAT32  # of the running softmax: once
    return Traffic(
        pages=int(pages) * page,
        tables=int(blocks.tiles_before[-1]) * LANES * _FLOAT32,
        queries=len(blocks.length) * products + start,
        outputs=len(blocks.length) * products,
        partials=0,
        fetch=sizes.chunk_blocks * page,
    )


def _on_gpu(layout: BlockMajorLayout, sizes: pallas_gpu.Sizes, blocks: QueryBlocks, itemsize: int) -> Traffic:
    """Single keys; an entry of the table per key and head; queries and partials of every piece of a run."""
    first, end = _seen(blocks, sizes.sliding_window)
    keys, heads = int(np.sum(end - first)), layout.num_kv_heads
    key = sum(_bytes(part) for part in layout.pool_spec(1) if part is not None) // layout.block_size  # of all heads
    before, length = np.asarray(blocks.tiles_before), np.asarray(blocks.length)
    run = max(1, -(-int(before[-1]) // sizes.num_runs))
    pieces = np.where(length > 0, (before[1:] - 1) // run - before[:-1] // run + 1, 0)  # of each query block
    queries = sizes.group * length * sizes.head_dim  # numbers, of one kv head
    numbers = pieces * (queries + 2 * sizes.rows)  # sums, maximum and total
    return Traffic(
        pages=keys * key,
        tables=keys * heads * _FLOAT32,
        queries=int(np.sum(pieces * queries)) * heads * itemsize,
        outputs=int(np.sum(queries)) * heads * itemsize,
        partials=2 * int(np.sum(numbers)) * heads * _FLOAT32,
        fetch=sizes.chunk * key // heads,
    )


def _bytes(spec) -> int:
    return int(np.prod(spec.shape)) * spec.dtype.itemsize
