"""The KV pool's shape for the TPU kernels."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve_kernels.paged_attention.layout import KVPool
from xlaserve_kernels.quantization import LARGEST, quantize

LANES = 128  # of a vector register


@dataclass(frozen=True)
class MergedRowsLayout:
    """`[num_blocks, rows, lanes]`: a block's heads below each other, padded to whole vector registers, for TPUs.

    One kv head of a block has block_size rows of keys, then block_size rows of values; or, where both fit into 128
    lanes, block_size rows with the values beside the keys: queries padded with zeros see the keys only. Merged rows
    cost no copy in a compiled body, where an axis of few heads or few lanes costs two of the whole pool.

    Scales, if the dtype is int8 or float8_e4m3fn: `[num_blocks, scale_rows, 128]`, block_size lanes for the keys of a
    head, then as many for its values, 128 // block_size such parts in a row.

    Raises ValueError for a block size that the kernels cannot address.
    """

    num_kv_heads: int  # K
    head_dim: int  # H
    block_size: int  # tokens
    dtype: np.dtype

    def __post_init__(self):
        if self.block_size % 8 or self.block_size > LANES:
            raise ValueError(f"block_size {self.block_size}: on TPUs it must be a multiple of 8, {LANES} at most")
        if self.quantized and LANES % self.block_size:
            raise ValueError(f"block_size {self.block_size}: on TPUs it must be a power of two with {self.dtype} KV")

    @property
    def quantized(self) -> bool:
        return self.dtype.name in LARGEST

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
    def scale_rows(self) -> int:
        return -(-2 * self.num_kv_heads * self.block_size // LANES)

    @property
    def block_bytes(self) -> int:
        return self.rows * self.lanes * self.dtype.itemsize

    def pool_spec(self, num_blocks: int) -> KVPool:
        """Shapes and dtypes of a pool, as `jax.ShapeDtypeStruct`s."""
        return jax.eval_shape(
            lambda: KVPool(
                jnp.zeros((num_blocks, self.rows, self.lanes), self.dtype),
                jnp.zeros((num_blocks, self.scale_rows, LANES), jnp.float32) if self.quantized else None,
            )
        )

    def merge(self, keys: Array, values: Array) -> KVPool:
        """keys, values [T, K, H] as a pool has them: [T, K, L] side by side, or else [T, 2K, L].

        Scales: [T, scale_rows, 128], a token's in all the lanes of its part.
        """
        pairs, scales = jnp.stack([keys, values], axis=2), None  # [T, K, 2, H]
        num_tokens = pairs.shape[0]
        if self.quantized:
            pairs, scales = quantize(pairs, self.dtype)
            scales = jnp.repeat(scales.reshape(num_tokens, -1), self.block_size, axis=1)
            scales = jnp.pad(scales, ((0, 0), (0, self.scale_rows * LANES - scales.shape[1])))
            scales = scales.reshape(num_tokens, self.scale_rows, LANES)
        width = self.head_dim * (2 if self.side_by_side else 1)
        rows = pairs.astype(self.dtype).reshape(num_tokens, -1, width)
        return KVPool(jnp.pad(rows, ((0, 0), (0, 0), (0, self.lanes - width))), scales)

    def head_pages(self, pages_ref, head: int) -> tuple[Array, Array]:
        """Keys and values of kv head `head` in pages [B, rows, lanes]: two arrays [B * block_size, lanes]."""

        def load(start: int) -> Array:
            return pages_ref[:, start : start + self.block_size, :].reshape(-1, self.lanes)

        if self.side_by_side:
            page = load(head * self.block_size)
            return page, page
        return load(2 * head * self.block_size), load((2 * head + 1) * self.block_size)
