"""Paged attention in C++, straight from the pages: native/attention.cc tells how."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve_kernels import native
from xlaserve_kernels.paged_attention.layout import BlockMajorLayout, KVPool


def paged_attention_cpu_native(
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
    """See api.py for the arguments. Returns [T, N, H] in q's dtype. Raises RuntimeError where nothing is loaded."""
    wide = q.astype(jnp.float32) if q.dtype == jnp.float16 else q
    none = jnp.zeros(0, jnp.float32)
    scales = none if kv_pool.scales is None else kv_pool.scales
    out = native.call("attention", jax.ShapeDtypeStruct(wide.shape, wide.dtype))(
        wide, kv_pool.pages, scales, block_tables, query_start_loc, seq_lens, none if sinks is None else sinks,
        scale=np.float32(scale), soft_cap=np.float32(soft_cap or 0),
        sliding_window=np.int64(sliding_window or 0),
    )  # fmt: skip
    return out.astype(q.dtype)
