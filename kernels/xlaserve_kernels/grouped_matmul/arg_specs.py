"""Grouped matrix products of real models, shared by tests and benchmarks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from xlaserve_kernels.grouped_matmul.api import grouped_matmul

TOKENS = {"decode": 64, "mixed": 1024}


@dataclass(frozen=True)
class GroupedShape:
    experts: int
    per_token: int
    inputs: int
    outputs: int

    def call(self, num_tokens: int, backend: str, **placed) -> tuple[Callable, list]:
        """(the product, its abstract arguments) in bfloat16, a token once for each of its experts."""
        shapes = (
            ((num_tokens * self.per_token, self.inputs), jnp.bfloat16),
            ((self.experts, self.inputs, self.outputs), jnp.bfloat16),
            ((self.experts,), jnp.int32),
        )
        arguments = [jax.ShapeDtypeStruct(shape, dtype, **placed) for shape, dtype in shapes]
        return functools.partial(grouped_matmul, backend=backend), arguments


GROUPED_MATMULS = {
    "qwen3-30b-a3b gate_up": GroupedShape(128, 8, 2048, 1536),
    "qwen3-30b-a3b down": GroupedShape(128, 8, 768, 2048),
    "gpt-oss-20b gate_up": GroupedShape(32, 4, 2880, 5760),
    "gpt-oss-20b down": GroupedShape(32, 4, 2880, 2880),
}
