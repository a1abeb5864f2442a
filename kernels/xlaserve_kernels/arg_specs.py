"""Named shapes of real models, shared by tests and benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    soft_cap: float | None = None


# Per device: with tensor parallelism of 8 a device has an eighth of the heads.
ATTENTION = {
    "llama-3.1-8b": AttentionShape(32, 8, 128),
    "llama-3.3-70b at TP 8": AttentionShape(8, 1, 128),
    "qwen3-8b": AttentionShape(32, 8, 128),
    "qwen3-30b-a3b": AttentionShape(32, 4, 128),
    "gemma-3-27b full": AttentionShape(32, 16, 128),
    "gemma-3-27b sliding": AttentionShape(32, 16, 128, sliding_window=1024),
    "gpt-oss-20b full": AttentionShape(64, 8, 64),
    "gpt-oss-20b sliding": AttentionShape(64, 8, 64, sliding_window=128),
    "smollm2-135m": AttentionShape(9, 3, 64),
    "gemma-2-9b": AttentionShape(16, 8, 256, sliding_window=4096, soft_cap=50.0),
    "head size 80": AttentionShape(32, 8, 80),
    "head size 96": AttentionShape(32, 32, 96),
}
