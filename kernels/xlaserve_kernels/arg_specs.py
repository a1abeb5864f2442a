"""Named shapes of real models, shared by tests and benchmarks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax

from xlaserve_kernels.kv_write import kv_write
from xlaserve_kernels.paged_attention import KVLayout, make_layout, paged_attention

BLOCK_SIZE, NUM_BLOCKS, TABLE_WIDTH = 16, 8193, 128  # 64 rows of 2,048 tokens, and the null block


@dataclass(frozen=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    kv_dtype: str = "bfloat16"

    def layout(self, backend: str) -> KVLayout:
        return make_layout(
            backend, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, block_size=BLOCK_SIZE, dtype=self.kv_dtype
        )

    def call(self, num_tokens: int, num_rows: int, backend: str, **placed) -> tuple[Callable, list]:
        """(the attention, its abstract arguments), queries in bfloat16; `placed` goes to each ShapeDtypeStruct."""
        layout = self.layout(backend)
        attend = functools.partial(
            paged_attention, backend=backend, layout=layout, scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window, soft_cap=self.soft_cap,
        )  # fmt: skip
        array = jax.ShapeDtypeStruct
        arguments = [
            array((num_tokens, self.num_heads, self.head_dim), "bfloat16"),
            layout.pool_spec(NUM_BLOCKS),
            array((num_rows, TABLE_WIDTH), "int32"),
            array((num_rows + 1,), "int32"),
            array((num_rows,), "int32"),
            array((self.num_heads,), "float32") if self.sinks else None,
        ]
        return attend, jax.tree.map(lambda x: array(x.shape, x.dtype, **placed), arguments)

    def write_call(self, num_tokens: int, num_rows: int, backend: str, **placed) -> tuple[Callable, list]:
        """(the KV write, its abstract arguments), keys and values in bfloat16."""
        layout, array = self.layout(backend), jax.ShapeDtypeStruct
        new = array((num_tokens, self.num_kv_heads, self.head_dim), "bfloat16")
        integers = array((num_tokens,), "int32"), array((num_rows + 1,), "int32")
        arguments = [layout.pool_spec(NUM_BLOCKS), new, new, *integers]
        write = functools.partial(kv_write, backend=backend, layout=layout)
        return write, jax.tree.map(lambda x: array(x.shape, x.dtype, **placed), arguments)


# Per device: with tensor parallelism of 8 a device has an eighth of the heads.
ATTENTION = {
    "llama-3.1-8b": AttentionShape(32, 8, 128),
    "llama-3.1-8b, int8 KV": AttentionShape(32, 8, 128, kv_dtype="int8"),
    "llama-3.1-8b, fp8 KV": AttentionShape(32, 8, 128, kv_dtype="float8_e4m3fn"),
    "llama-3.3-70b at TP 8": AttentionShape(8, 1, 128),
    "qwen3-8b": AttentionShape(32, 8, 128),
    "qwen3-30b-a3b": AttentionShape(32, 4, 128),
    "gemma-3-27b full": AttentionShape(32, 16, 128),
    "gemma-3-27b sliding": AttentionShape(32, 16, 128, sliding_window=1024),
    "gpt-oss-20b full": AttentionShape(64, 8, 64, sinks=True),
    "gpt-oss-20b sliding": AttentionShape(64, 8, 64, sliding_window=128, sinks=True),
    "smollm2-135m": AttentionShape(9, 3, 64),
    "gemma-2-9b": AttentionShape(16, 8, 256, sliding_window=4096, soft_cap=50.0),
    "head size 80": AttentionShape(32, 8, 80),
    "head size 96": AttentionShape(32, 32, 96),
}
BATCHES = {"decode, 64 rows": (64, 64), "mixed, 1,024 tokens": (1024, 64)}  # tokens, rows
