"""The KV pool's shape per backend, and the write into it. Copy, offload and sharding of blocks go through here."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

NULL_BLOCK = 0  # padding tokens are written here; nothing reads it


@dataclass(frozen=True)
class BlockMajorLayout:
    """`[num_blocks, 2, K, block_size, H]`: one head's keys (or values) of one block are contiguous.

    On CPU a gather of whole pages of block_size * H elements costs a seventh of a gather of token rows, and lands
    head-major, as the matrix products want it. Axis 1 holds keys, then values.

    With `as_bits`, bfloat16 is stored as its bits: jax 0.10's CPU compiler writes into a bfloat16 array by converting
    all of it to float32 and back, 18 ms per layer for 2,000 blocks.
    """

    num_kv_heads: int  # K
    head_dim: int  # H
    block_size: int  # tokens
    dtype: np.dtype  # of keys and values
    as_bits: bool

    @property
    def storage_dtype(self) -> np.dtype:
        """The pool's dtype."""
        return np.dtype(np.uint16) if self.as_bits and self.dtype == jnp.bfloat16 else self.dtype

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        return (num_blocks, 2, self.num_kv_heads, self.block_size, self.head_dim)

    def write(self, kv_cache: Array, keys: Array, values: Array, slot_mapping: Array) -> Array:
        """Writes one token per row of `keys`, `values` [T, K, H] at `slot_mapping` [T] = block * block_size + offset.

        Slots outside the pool are dropped. In place when the pool is donated.
        """
        pairs = jnp.stack([keys, values], axis=1).astype(self.dtype)  # [T, 2, K, H]
        pairs = lax.bitcast_convert_type(pairs, self.storage_dtype)
        block, offset = slot_mapping // self.block_size, slot_mapping % self.block_size
        return kv_cache.at[block, :, :, offset, :].set(pairs, mode="drop")

    def read_pages(self, kv_cache: Array, block_ids: Array) -> tuple[Array, Array]:
        """Keys and values of `block_ids` [..., B]: two arrays [..., K, B * block_size, H]."""
        kv_heads, page = self.num_kv_heads, self.block_size * self.head_dim
        pages = kv_cache.reshape(-1, page)  # a view: one row per (block, k or v, head)
        first = block_ids[..., None, :] * (2 * kv_heads) + jnp.arange(kv_heads)[:, None]  # [..., K, B]
        shape = (*first.shape[:-1], first.shape[-1] * self.block_size, self.head_dim)
        keys = jnp.take(pages, first, axis=0, mode="clip").reshape(shape)
        values = jnp.take(pages, first + kv_heads, axis=0, mode="clip").reshape(shape)
        return lax.bitcast_convert_type(keys, self.dtype), lax.bitcast_convert_type(values, self.dtype)


def slot_mapping(block_tables: Array, rows: Array, positions: Array, valid: Array, block_size: int) -> Array:
    """Slot of each token [T]: the place of `positions` [T] in the block tables [R, W] of `rows` [T].

    Tokens that are not `valid` go to the null block.
    """
    column = jnp.minimum(positions // block_size, block_tables.shape[1] - 1)
    block = jnp.where(valid, block_tables[rows, column], NULL_BLOCK)
    return block * block_size + positions % block_size
