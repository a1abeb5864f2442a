"""Ragged paged attention: argument checks and dispatch to the backend named."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from xlaserve_kernels.backend import check_backend
from xlaserve_kernels.checks import expect_shape
from xlaserve_kernels.paged_attention.checks import check_pool, check_tables, expect_dtype
from xlaserve_kernels.paged_attention.cpu_native import paged_attention_cpu_native
from xlaserve_kernels.paged_attention.layout import BlockMajorLayout, KVPool
from xlaserve_kernels.paged_attention.merged_rows import MergedRowsLayout
from xlaserve_kernels.paged_attention.pallas_gpu import paged_attention_pallas_gpu
from xlaserve_kernels.paged_attention.pallas_tpu import paged_attention_pallas_tpu
from xlaserve_kernels.paged_attention.xla import paged_attention_xla
from xlaserve_kernels.quantization import LARGEST

KVLayout = BlockMajorLayout | MergedRowsLayout

_IMPLEMENTATIONS = {
    "xla": paged_attention_xla,
    "cpu_native": paged_attention_cpu_native,
    "pallas_tpu": paged_attention_pallas_tpu,
    "pallas_tpu_interpret": functools.partial(paged_attention_pallas_tpu, interpret=True),
    "pallas_gpu": paged_attention_pallas_gpu,
    "pallas_gpu_interpret": functools.partial(paged_attention_pallas_gpu, interpret=True),
}


_FLOATS = ("float32", "bfloat16", "float16")
_KV_DTYPES = (*_FLOATS, *LARGEST)
_LARGEST_HEAD = 256


def make_layout(backend: str, *, num_kv_heads: int, head_dim: int, block_size: int, dtype) -> KVLayout:
    """The layout for `backend` of a KV pool that holds keys and values of `dtype`.

    int8 and float8_e4m3fn mean a quantised pool, with a scale per token and kv head. Raises ValueError for a dtype, a
    head_dim or a block size that the backend cannot take.
    """
    check_backend(backend)
    dtype = np.dtype(dtype)
    if dtype.name not in _KV_DTYPES:
        raise ValueError(f"dtype {dtype.name}: a KV pool holds {', '.join(_KV_DTYPES)}")
    if not 0 < head_dim <= _LARGEST_HEAD:
        raise ValueError(f"head_dim {head_dim}: must be in [1, {_LARGEST_HEAD}]")
    if num_kv_heads < 1 or block_size < 1:
        raise ValueError(f"num_kv_heads {num_kv_heads}, block_size {block_size}: must be at least 1")
    if backend.startswith("pallas_tpu"):
        return MergedRowsLayout(num_kv_heads, head_dim, block_size, dtype)
    if backend.startswith("pallas_gpu") and block_size & (block_size - 1):
        raise ValueError(f"block_size {block_size}: with {backend} it must be a power of two, as 16 is")
    return BlockMajorLayout(num_kv_heads, head_dim, block_size, dtype, as_bits=backend in ("xla", "cpu_native"))


def paged_attention(
    q: Array,
    kv_pool: KVPool,
    block_tables: Array,
    query_start_loc: Array,
    seq_lens: Array,
    sinks: Array | None = None,
    *,
    backend: str,
    layout: KVLayout,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    debug: bool = False,
) -> Array:
    """Causal attention of a batch that mixes prefill chunks and decodes; one call for all rows.

    q [T, N, H] float; kv_pool as `layout.pool_spec(num_blocks)`; block_tables int32 [R, W]; query_start_loc int32
    [R + 1], from 0 on; seq_lens int32 [R], each row's context with its queries included (0 and no queries for an idle
    row). Scores are `scale * q.k`, soft-capped if `soft_cap`, over keys no older than `sliding_window` tokens. sinks
    float32 [N]: a logit per query head that joins its softmax as it is, and weighs on no value. Softmax in float32.
    Returns [T, N, H] in q's dtype, zeros for tokens of no row. Raises ValueError naming the argument at fault; with
    `debug` also for what the integers hold, see check_tables: under jit when the step runs, in whatever error jax makes
    of it.
    """
    check_backend(backend)
    _check_arguments(q, kv_pool, block_tables, query_start_loc, seq_lens, sinks, layout)
    if debug:
        sizes = dict(num_blocks=kv_pool.pages.shape[0], block_size=layout.block_size, num_tokens=q.shape[0])
        block_tables = _checked_tables(block_tables, query_start_loc, seq_lens, **sizes)
    attend = _IMPLEMENTATIONS[backend]
    return attend(
        q, kv_pool, block_tables, query_start_loc, seq_lens, sinks,
        layout=layout, scale=scale, sliding_window=sliding_window, soft_cap=soft_cap,
    )  # fmt: skip


def _checked_tables(block_tables: Array, query_start_loc: Array, seq_lens: Array, **sizes: int) -> Array:
    """The block tables, checked: at once if the values are known, else on the host before anything reads them."""

    def check(tables, starts, lens):
        check_tables(tables, starts, lens, **sizes)
        return np.asarray(tables)

    arguments = (block_tables, query_start_loc, seq_lens)
    if any(isinstance(x, Tracer) for x in arguments):
        return jax.pure_callback(check, jax.ShapeDtypeStruct(block_tables.shape, jnp.int32), *arguments)
    return jnp.asarray(check(*arguments))


def _check_arguments(q, kv_pool, block_tables, query_start_loc, seq_lens, sinks, layout) -> None:
    expect_shape("q", q, q.ndim == 3 and q.shape[2] == layout.head_dim, f"[T, N, {layout.head_dim}]")
    heads_ok = q.shape[1] % layout.num_kv_heads == 0
    expect_shape("q", q, heads_ok, f"a multiple of {layout.num_kv_heads} kv heads on axis 1")
    expect_dtype("q", q, *_FLOATS)
    check_pool(kv_pool, layout)
    expect_shape("block_tables", block_tables, block_tables.ndim == 2, "[R, W]")
    num_rows = block_tables.shape[0]
    expect_shape("query_start_loc", query_start_loc, query_start_loc.shape == (num_rows + 1,), f"[{num_rows + 1}]")
    expect_shape("seq_lens", seq_lens, seq_lens.shape == (num_rows,), f"[{num_rows}]")
    for name, array in (("block_tables", block_tables), ("query_start_loc", query_start_loc), ("seq_lens", seq_lens)):
        expect_dtype(name, array, "int32")
    if sinks is not None:
        expect_shape("sinks", sinks, sinks.shape == (q.shape[1],), f"[{q.shape[1]}], one for each query head")
        expect_dtype("sinks", sinks, "float32")
