"""The KV pool's shape per backend, and the write into it. Copy, offload and sharding of blocks go through here."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from xlaserve_kernels.quantization import LARGEST, quantize

NULL_BLOCK = 0  # padding tokens are written here; nothing reads it


class KVPool(NamedTuple):
    """One layer's keys and values. Blocks lie along axis 0 of every array, whatever the layout.

    Of an unquantised pool `scales` is None. Of a quantised one it is float32, one scale per token, kv head, and key or
    value; what `pages` holds times its scale is the key or value.
    """

    pages: Array
    scales: Array | None


@dataclass(frozen=True)
class BlockMajorLayout:
    """`[num_blocks, 2, K, block_size, H]`: one head's keys (or values) of one block are contiguous.

    On CPU a gather of whole pages of block_size * H elements costs a seventh of a gather of token rows, and lands
    head-major, as the matrix products want it. Axis 1 holds keys, then values. Scales, if the dtype is int8 or
    float8_e4m3fn: `[num_blocks, 2, K, block_size]`.

    float8_e4m3fn is stored as its bits, for not every GPU can convert it. With `as_bits`, bfloat16 is too: jax 0.10's
    CPU compiler writes into a bfloat16 array by converting all of it to float32 and back, 18 ms per layer for 2,000
    blocks.
    """

    num_kv_heads: int  # K
    head_dim: int  # H
    block_size: int  # tokens
    dtype: np.dtype  # of keys and values
    as_bits: bool

    @property
    def quantized(self) -> bool:
        return self.dtype.name in LARGEST

    @property
    def storage_dtype(self) -> np.dtype:
        """The pages' dtype."""
        if self.dtype == jnp.float8_e4m3fn:
            return np.dtype(np.uint8)
        return np.dtype(np.uint16) if self.as_bits and self.dtype == jnp.bfloat16 else self.dtype

    def pool_spec(self, num_blocks: int) -> KVPool:
        """Shapes and dtypes of a pool, as `jax.ShapeDtypeStruct`s."""
        heads = (num_blocks, 2, self.num_kv_heads, self.block_size)
        return jax.eval_shape(
            lambda: KVPool(
                jnp.zeros((*heads, self.head_dim), self.storage_dtype),
                jnp.zeros(heads, jnp.float32) if self.quantized else None,
            )
        )

    def write(self, pool: KVPool, keys: Array, values: Array, slot_mapping: Array) -> KVPool:
        """Writes one token per row of `keys`, `values` [T, K, H] at `slot_mapping` [T] = block * block_size + offset.

        Slots outside the pool are dropped. In place when the pool is donated.
        """
        block, offset = slot_mapping // self.block_size, slot_mapping % self.block_size
        pairs, scales = jnp.stack([keys, values], axis=1), pool.scales  # [T, 2, K, H]
        if scales is not None:
            pairs, new = quantize(pairs, self.dtype)
            scales = scales.at[block, :, :, offset].set(new, mode="drop")
        pairs = lax.bitcast_convert_type(pairs.astype(self.dtype), self.storage_dtype)
        return KVPool(pool.pages.at[block, :, :, offset, :].set(pairs, mode="drop"), scales)

    def read_pages(self, pool: KVPool, block_ids: Array) -> tuple[Array, Array]:
        """Keys and values of `block_ids` [..., B]: two arrays [..., K, B * block_size, H].

        Of a quantised pool they are as stored, float8_e4m3fn as its bits.
        """
        keys, values = self._gather(pool.pages, block_ids)
        dtype = self.storage_dtype if self.quantized else self.dtype
        return lax.bitcast_convert_type(keys, dtype), lax.bitcast_convert_type(values, dtype)

    def read_scales(self, pool: KVPool, block_ids: Array) -> tuple[Array, Array] | None:
        """The scales of what read_pages gives, two arrays [..., K, B * block_size]; None if unquantised."""
        return None if pool.scales is None else self._gather(pool.scales, block_ids)

    def _gather(self, array: Array, block_ids: Array) -> tuple[Array, Array]:
        per_token = array.shape[4:]
        page = self.block_size * int(np.prod(per_token))
        rows = array.reshape(-1, page)  # a view: one row per (block, k or v, head)
        kv_heads = self.num_kv_heads
        first = block_ids[..., None, :] * (2 * kv_heads) + jnp.arange(kv_heads)[:, None]  # [..., K, B]
        shape = (*first.shape[:-1], first.shape[-1] * self.block_size, *per_token)
        keys = jnp.take(rows, first, axis=0, mode="clip").reshape(shape)
        return keys, jnp.take(rows, first + kv_heads, axis=0, mode="clip").reshape(shape)


def slot_mapping(block_tables: Array, rows: Array, positions: Array, valid: Array, block_size: int) -> Array:
    """Slot of each token [T]: the place of `positions` [T] in the block tables [R, W] of `rows` [T].

    Tokens that are not `valid` go to the null block.
    """
    column = jnp.minimum(positions // block_size, block_tables.shape[1] - 1)
    block = jnp.where(valid, block_tables[rows, column], NULL_BLOCK)
    return block * block_size + positions % block_size
