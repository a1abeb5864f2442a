"""Ragged paged attention: argument checks and dispatch to the backend named."""

import functools

import numpy as np
from jax import Array

from xlaserve_kernels.backend import check_backend
from xlaserve_kernels.paged_attention.layout import BlockMajorLayout
from xlaserve_kernels.paged_attention.merged_rows import MergedRowsLayout
from xlaserve_kernels.paged_attention.pallas_gpu import paged_attention_pallas_gpu
from xlaserve_kernels.paged_attention.pallas_tpu import paged_attention_pallas_tpu
from xlaserve_kernels.paged_attention.xla import paged_attention_xla

KVLayout = BlockMajorLayout | MergedRowsLayout

_IMPLEMENTATIONS = {
    "xla": paged_attention_xla,
    "pallas_tpu": paged_attention_pallas_tpu,
    "pallas_tpu_interpret": functools.partial(paged_attention_pallas_tpu, interpret=True),
    "pallas_gpu": paged_attention_pallas_gpu,
    "pallas_gpu_interpret": functools.partial(paged_attention_pallas_gpu, interpret=True),
}


def make_layout(backend: str, *, num_kv_heads: int, head_dim: int, block_size: int, dtype) -> KVLayout:
    """The layout for `backend` of a KV pool that holds keys and values of `dtype`.

    Raises ValueError for a block size that the backend cannot address.
    """
    check_backend(backend)
    if backend.startswith("pallas_tpu"):
        if block_size % 8 or block_size > 128:
            raise ValueError(f"block_size {block_size}: with {backend} it must be a multiple of 8, 128 at most")
        return MergedRowsLayout(num_kv_heads, head_dim, block_size, np.dtype(dtype))
    if backend.startswith("pallas_gpu") and block_size & (block_size - 1):
        raise ValueError(f"block_size {block_size}: with {backend} it must be a power of two, as 16 is")
    return BlockMajorLayout(num_kv_heads, head_dim, block_size, np.dtype(dtype), as_bits=backend == "xla")


def paged_attention(
    q: Array,
    kv_cache: Array,
    block_tables: Array,
    query_start_loc: Array,
    seq_lens: Array,
    *,
    backend: str,
    layout: KVLayout,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Array:
    """Causal attention of a batch that mixes prefill chunks and decodes; one call for all rows.

    q [T, N, H] float; kv_cache as `layout.shape(num_blocks)`; block_tables int32 [R, W]; query_start_loc int32 [R + 1];
    seq_lens int32 [R], each row's context with its queries included (0 and no queries for an idle row). Scores are
    `scale * q.k`, soft-capped if `soft_cap`, over keys no older than `sliding_window` tokens. Softmax in float32.
    Returns [T, N, H] in q's dtype, zeros for tokens of no row. Raises ValueError naming the argument at fault.
    """
    check_backend(backend)
    _check_arguments(q, kv_cache, block_tables, query_start_loc, seq_lens, layout)
    attend = _IMPLEMENTATIONS[backend]
    return attend(
        q, kv_cache, block_tables, query_start_loc, seq_lens,
        layout=layout, scale=scale, sliding_window=sliding_window, soft_cap=soft_cap,
    )  # fmt: skip


def _check_arguments(q, kv_cache, block_tables, query_start_loc, seq_lens, layout) -> None:
    _expect("q", q, q.ndim == 3 and q.shape[2] == layout.head_dim, f"[T, N, {layout.head_dim}]")
    heads_ok = q.shape[1] % layout.num_kv_heads == 0
    _expect("q", q, heads_ok, f"a multiple of {layout.num_kv_heads} kv heads on axis 1")
    pool_shape = layout.shape(kv_cache.shape[0])
    _expect("kv_cache", kv_cache, kv_cache.shape == pool_shape, f"[num_blocks, {', '.join(map(str, pool_shape[1:]))}]")
    _expect("block_tables", block_tables, block_tables.ndim == 2, "[R, W]")
    num_rows = block_tables.shape[0]
    _expect("query_start_loc", query_start_loc, query_start_loc.shape == (num_rows + 1,), f"[{num_rows + 1}]")
    _expect("seq_lens", seq_lens, seq_lens.shape == (num_rows,), f"[{num_rows}]")
    for name, array in (("block_tables", block_tables), ("query_start_loc", query_start_loc), ("seq_lens", seq_lens)):
        if array.dtype != "int32":
            raise ValueError(f"{name} has dtype {array.dtype}: must be int32")


def _expect(name: str, array: Array, ok: bool, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} has shape {list(array.shape)}: must be {allowed}")
