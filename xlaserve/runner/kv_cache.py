"""The KV pools: their layouts, what a block of them costs, and the arrays."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from xlaserve_kernels.paged_attention import NULL_BLOCK, KVLayout, KVPool, make_layout
from xlaserve_kernels.quantization import LARGEST

from xlaserve.models.kv_spec import KVSpec, group_of_layer
from xlaserve.runner.packing import Packing

SCALE_BYTES = 4  # float32


def copy_packing(num_groups: int, num_rows: int) -> Packing:
    """A step copies a block per row and group at most."""
    return Packing((("count", ()), ("copies", (num_groups * num_rows, 3))))


def pack_copies(packing: Packing, copies: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    buffer, parts = packing.new()
    parts["count"][...] = len(copies)
    parts["copies"][: len(copies)] = copies
    return buffer


def copy_blocks(
    pools: tuple[KVPool, ...], packed: Array, *, packing: Packing, specs: tuple[KVSpec, ...]
) -> tuple[KVPool, ...]:
    """The program of CopyBlocks: (group, source, destination), in order, in every layer of the group.

    Donates the pools, which have their blocks along axis 0; what it takes follows the number of copies.
    """
    parts = packing.unpack(packed)
    groups = group_of_layer(specs)

    def copy(index: Array, pools: tuple[KVPool, ...]) -> tuple[KVPool, ...]:
        group, *blocks = parts["copies"][index]
        copied = []
        for layer, pool in enumerate(pools):
            source, destination = (jnp.where(group == groups[layer], block, NULL_BLOCK) for block in blocks)
            copied.append(jax.tree.map(lambda x, s=source, d=destination: _copy_block(x, s, d), pool))
        return tuple(copied)

    return lax.fori_loop(jnp.int32(0), parts["count"], copy, pools)


def _copy_block(array: Array, source: Array, destination: Array) -> Array:
    block = lax.dynamic_slice_in_dim(array, source, 1, allow_negative_indices=False)
    return lax.dynamic_update_slice_in_dim(array, block, destination, axis=0, allow_negative_indices=False)


def make_layouts(
    specs: tuple[KVSpec, ...], backend: str, block_size: int, dtype: np.dtype, num_devices: int = 1
) -> tuple[KVLayout, ...]:
    """Of each layer group's pools on one of `num_devices` that share the heads.

    Raises ValueError for what the backend's kernels cannot take.
    """
    return tuple(
        make_layout(
            backend,
            num_kv_heads=spec.num_kv_heads // num_devices,
            head_dim=spec.head_dim,
            block_size=block_size,
            dtype=dtype,
        )
        for spec in specs
    )


def block_bytes(spec: KVSpec, layout: KVLayout) -> int:
    """Of one block in all layers of a group on one device, with what the layout adds: padding, scales."""
    return len(spec.layers) * sum(part.size * part.dtype.itemsize for part in jax.tree.leaves(layout.pool_spec(1)))


def vector_bytes(head_dim: int, dtype: np.dtype) -> int:
    """Of a token's key, or value, of one head, with its scale if it is quantised; without padding."""
    return head_dim * dtype.itemsize + (SCALE_BYTES if dtype.name in LARGEST else 0)


def make_pools(
    specs: tuple[KVSpec, ...],
    layouts: tuple[KVLayout, ...],
    num_blocks: tuple[int, ...],
    num_devices: int = 1,
) -> tuple[KVPool, ...]:
    """One zeroed pool per layer, in layer order, for all devices. `layouts`, `num_blocks`: per layer group, of one."""
    pool_specs = [layout.pool_spec(n * num_devices) for layout, n in zip(layouts, num_blocks, strict=True)]
    return tuple(
        jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), pool_specs[group])
        for _, group in sorted(group_of_layer(specs).items())
    )
