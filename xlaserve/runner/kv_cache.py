"""How large the KV pool is, and the pool itself."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from xlaserve_kernels.paged_attention import NULL_BLOCK, KVLayout, KVPool, make_layout

from xlaserve.config import CacheSection
from xlaserve.errors import ConfigError
from xlaserve.models.kv_spec import KVSpec, group_of_layer
from xlaserve.runner.packing import Packing

HOST_DEFAULT_BYTES = 2**30  # on CPU the pool is the machine's own memory, which others want too
DEVICE_SHARE = 0.8  # of what the weights leave free; the rest is for activations


@dataclass(frozen=True)
class PoolSize:
    num_blocks: int  # of each layer group, the null block included
    reason: str

    def tokens(self, block_size: int) -> int:
        """What one request can hold at most."""
        return (self.num_blocks - 1) * block_size


def size_pool(
    section: CacheSection,
    bytes_per_block: int,
    *,
    max_num_seqs: int,
    max_model_len: int,
    free_memory: int | None,
) -> PoolSize:
    """Blocks for the pool; more than max_num_seqs requests of max_model_len can never be used.

    bytes_per_block: in all layers together.
    free_memory: bytes that the weights leave free on the device; None where it uses the machine's own memory.
    Raises ConfigError when not even one block fits.
    """
    if section.num_blocks is not None:
        return PoolSize(section.num_blocks, "cache.num_blocks")
    budget, reason = _budget(section, free_memory)
    fitting = budget // bytes_per_block
    useful = 1 + max_num_seqs * -(-max_model_len // section.block_size)
    if fitting < 2:
        raise ConfigError(
            f"cache.memory: {budget} bytes hold no block of {section.block_size} tokens ({bytes_per_block} bytes)"
        )
    if useful <= fitting:
        return PoolSize(useful, "all that max_num_seqs requests of max_model_len can use")
    return PoolSize(fitting, reason)


def _budget(section: CacheSection, free_memory: int | None) -> tuple[int, str]:
    if section.memory is not None:
        return section.memory, "cache.memory"
    if free_memory is None:
        return HOST_DEFAULT_BYTES, f"{HOST_DEFAULT_BYTES // 2**20} MiB by default in host memory"
    return int(free_memory * DEVICE_SHARE), f"{DEVICE_SHARE:.0%} of the device's free memory"


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
    return lax.dynamic_update_slice_in_dim(array, lax.dynamic_slice_in_dim(array, source, 1), destination, axis=0)


def make_layouts(specs: tuple[KVSpec, ...], backend: str, block_size: int, dtype: np.dtype) -> tuple[KVLayout, ...]:
    """Of each layer group's pools. Raises ValueError for what the backend's kernels cannot take."""
    return tuple(
        make_layout(backend, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, block_size=block_size, dtype=dtype)
        for spec in specs
    )


def block_bytes(specs: tuple[KVSpec, ...], layouts: tuple[KVLayout, ...]) -> int:
    """Of one block in all layers, with what a layout adds: padding, scales."""
    return sum(
        len(spec.layers) * sum(part.size * part.dtype.itemsize for part in jax.tree.leaves(layout.pool_spec(1)))
        for spec, layout in zip(specs, layouts, strict=True)
    )


def make_pools(
    specs: tuple[KVSpec, ...],
    layouts: tuple[KVLayout, ...],
    num_blocks: int,
    sharding: jax.sharding.Sharding,
) -> tuple[KVPool, ...]:
    """One zeroed pool per layer, in layer order."""
    layout_of = {layer: layouts[group] for group, spec in enumerate(specs) for layer in spec.layers}
    return tuple(
        jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=sharding), layout_of[layer].pool_spec(num_blocks))
        for layer in sorted(layout_of)
    )
