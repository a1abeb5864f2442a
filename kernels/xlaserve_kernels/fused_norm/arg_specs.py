"""Hidden sizes of real models, shared by tests and benchmarks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from xlaserve_kernels.fused_norm.api import add_rms_norm

TOKENS = {"decode": 64, "mixed": 1024}


@dataclass(frozen=True)
class NormShape:
    hidden: int
    group: int

    def call(self, num_tokens: int, quantized: bool, backend: str, **placed) -> tuple[Callable, list]:
        """(the norm, its abstract arguments) in bfloat16; `placed` goes to each ShapeDtypeStruct."""
        shapes = ((num_tokens, self.hidden), (num_tokens, self.hidden), (self.hidden,))
        norm = functools.partial(
            add_rms_norm, eps=1e-6, quantize_group=self.group if quantized else None, backend=backend
        )
        return norm, [jax.ShapeDtypeStruct(shape, jnp.bfloat16, **placed) for shape in shapes]


NORMS = {
    "llama-3.1-8b": NormShape(4096, 128),  # qwen3-8b too
    "llama-3.3-70b": NormShape(8192, 128),
    "qwen3-30b-a3b": NormShape(2048, 128),
    "gemma-3-27b": NormShape(5376, 128),
    "gpt-oss-20b": NormShape(2880, 64),
    "smollm2-135m": NormShape(576, 64),
}
