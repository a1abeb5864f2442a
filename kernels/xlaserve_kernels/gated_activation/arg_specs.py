"""Widths of real models' feed-forward blocks, shared by tests and benchmarks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from xlaserve_kernels.gated_activation.api import gated_activation

TOKENS = {"decode": 64, "mixed": 1024}


@dataclass(frozen=True)
class GateShape:
    width: int  # F
    activation: str = "silu"

    def call(self, num_tokens: int, quantized: bool, backend: str, **placed) -> tuple[Callable, list]:
        """(the gate, its abstract arguments) in bfloat16; `placed` goes to each ShapeDtypeStruct."""
        gate = functools.partial(
            gated_activation, activation=self.activation, quantize_group=128 if quantized else None, backend=backend
        )
        return gate, [jax.ShapeDtypeStruct((num_tokens, 2 * self.width), jnp.bfloat16, **placed)]


GATES = {
    "llama-3.1-8b": GateShape(14336),
    "llama-3.3-70b at TP 8": GateShape(3584),
    "qwen3-8b": GateShape(12288),
    "qwen3-30b-a3b": GateShape(768),
    "gemma-3-27b": GateShape(21504, "gelu_pytorch_tanh"),
    "smollm2-135m": GateShape(1536),
}
