"""KV write: argument checks and dispatch to the backend named."""

import functools

from jax import Array

from xlaserve_kernels.backend import check_backend
from xlaserve_kernels.kv_write.pallas_tpu import kv_write_pallas_tpu
from xlaserve_kernels.paged_attention import KVLayout, KVPool
from xlaserve_kernels.paged_attention.checks import check_pool


def _scatter(pool, keys, values, slot_mapping, query_start_loc, *, layout):
    return layout.write(pool, keys, values, slot_mapping)


_IMPLEMENTATIONS = {
    "xla": _scatter,
    "cpu_native": _scatter,  # XLA is not slow at it
    "pallas_tpu": kv_write_pallas_tpu,
    "pallas_tpu_interpret": functools.partial(kv_write_pallas_tpu, interpret=True),
    "pallas_gpu": _scatter,  # XLA makes one kernel of it, the rotary embedding in front included
    "pallas_gpu_interpret": _scatter,
}


def kv_write(
    pool: KVPool,
    keys: Array,
    values: Array,
    slot_mapping: Array,
    query_start_loc: Array,
    *,
    backend: str,
    layout: KVLayout,
) -> KVPool:
    """Writes a step's keys and values into the pool; in place when it is donated. Returns the pool.

    pool as `layout.pool_spec(num_blocks)`; keys, values [T, K, H]; slot_mapping int32 [T], block * block_size + offset:
    consecutive tokens of a row have consecutive positions, and no two rows write into one block; the null block's
    contents are undefined afterwards, slots outside the pool are dropped. query_start_loc int32 [R + 1] as for
    paged_attention. Raises ValueError naming the argument at fault.
    """
    check_backend(backend)
    check_pool(pool, layout, "pool")
    shape = (slot_mapping.shape[0], layout.num_kv_heads, layout.head_dim)
    for name, array in (("keys", keys), ("values", values)):
        if array.shape != shape:
            raise ValueError(f"{name} has shape {list(array.shape)}: must be {list(shape)}")
    for name, array in (("slot_mapping", slot_mapping), ("query_start_loc", query_start_loc)):
        if array.dtype != "int32" or array.ndim != 1:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}: must be int32 of one axis")
    write = _IMPLEMENTATIONS[backend]
    return write(pool, keys, values, slot_mapping, query_start_loc, layout=layout)
