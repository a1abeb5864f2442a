"""The KV pool's shape for the TPU kernels."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

LANES = 128  # of a vector register


@dataclass(frozen=True)
class MergedRowsLayout:
    """`[num_blocks, rows, lanes]`: a block's heads below each other, padded to whole vector registers, for TPUs.

    One kv head of a block has block_size rows of keys, then block_size rows of values; or, where both fit into 128
    lanes, block_size rows with the values beside the keys: queries padded with zeros see the keys only. Merged rows
    cost no copy in a compiled body, where an axis of few heads or few lanes costs two of the whole pool.
    """

    num_kv_heads: int  # K
    head_dim: int  # H
    block_size: int  # tokens
    dtype: np.dtype

    @property
    def side_by_side(self) -> bool:
        return 2 * self.head_dim <= LANES

    @property
    def lanes(self) -> int:
        return -(-self.head_dim // LANES) * LANES

    @property
    def first_value_lane(self) -> int:
        return self.head_dim if self.side_by_side else 0

    @property
    def rows(self) -> int:
        return self.num_kv_heads * self.block_size * (1 if self.side_by_side else 2)

    @property
    def block_bytes(self) -> int:
        return self.rows * self.lanes * self.dtype.itemsize

    @property
    def storage_dtype(self) -> np.dtype:
        """The pool's dtype."""
        return self.dtype

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        return (num_blocks, self.rows, self.lanes)

    def write(self, kv_cache: Array, keys: Array, values: Array, slot_mapping: Array) -> Array:
        """Writes one token per row of `keys`, `values` [T, K, H] at `slot_mapping` [T] = block * block_size + offset.

        Slots outside the pool are dropped. In place when the pool is donated.
        """
        block, offset = slot_mapping // self.block_size, slot_mapping % self.block_size
        rows = self.merge(keys, values)  # [T, K or 2K, L]
        place = jnp.arange(rows.shape[1]) * self.block_size + offset[:, None]  # [T, K or 2K]
        return kv_cache.at[block[:, None], place].set(rows, mode="drop")

    def merge(self, keys: Array, values: Array) -> Array:
        """keys, values [..., K, H] as the rows of one token: [..., K, L] side by side, or else [..., 2K, L]."""
        if self.side_by_side:
            pairs = jnp.concatenate([keys, values], axis=-1)
        else:
            pairs = jnp.stack([keys, values], axis=-2)
            pairs = pairs.reshape(*pairs.shape[:-3], -1, self.head_dim)
        padding = [(0, 0)] * (pairs.ndim - 1) + [(0, self.lanes - pairs.shape[-1])]
        return jnp.pad(pairs, padding).astype(self.dtype)

    def head_pages(self, pages_ref, head: int) -> tuple[Array, Array]:
        """Keys and values of kv head `head` in pages [B, rows, lanes]: two arrays [B * block_size, lanes]."""

        def load(start: int) -> Array:
            return pages_ref[:, start : start + self.block_size, :].reshape(-1, self.lanes)

        if self.side_by_side:
            page = load(head * self.block_size)
            return page, page
        return load(2 * head * self.block_size), load((2 * head + 1) * self.block_size)
