"""Quantised matrix products of real models, shared by tests and benchmarks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from xlaserve_kernels.quantized_matmul.api import quantized_matmul
from xlaserve_kernels.quantized_matmul.weight import GROUP_SIZES, quantize_weight

TOKENS = {"decode": 64, "mixed": 1024}
# (mode, whether it has groups)
VARIANTS = {
    "w8a8 by token": ("w8a8", False),
    "w8a8 by group": ("w8a8", True),
    "w8a16": ("w8a16", False),
    "w4a16": ("w4a16", True),
    "fp8_w8a8": ("fp8_w8a8", False),
    "fp8_w8a16": ("fp8_w8a16", False),
}


@dataclass(frozen=True)
class MatmulShape:
    inputs: int
    outputs: int

    def call(self, num_tokens: int, variant: str, backend: str, **placed) -> tuple[Callable, list]:
        """(the product, its abstract arguments), bfloat16 in and out; `placed` goes to each ShapeDtypeStruct.

        Groups are the largest that divide the inputs.
        """
        mode, grouped = VARIANTS[variant]
        group_size = max(g for g in GROUP_SIZES if self.inputs % g == 0) if grouped else None
        quantized = jax.eval_shape(
            functools.partial(quantize_weight, mode=mode, group_size=group_size),
            jax.ShapeDtypeStruct((self.outputs, self.inputs), jnp.bfloat16),
        )
        x = jax.ShapeDtypeStruct((num_tokens, self.inputs), jnp.bfloat16)
        arguments = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, **placed), [x, quantized])
        return functools.partial(quantized_matmul, backend=backend), arguments


# Per device: with tensor parallelism of 8 a device has an eighth of the outputs, or of the inputs (o, down).
MATMULS = {
    "llama-3.1-8b qkv": MatmulShape(4096, 6144),
    "llama-3.1-8b o": MatmulShape(4096, 4096),
    "llama-3.1-8b gate_up": MatmulShape(4096, 28672),
    "llama-3.1-8b down": MatmulShape(14336, 4096),
    "llama-3.3-70b at TP 8 qkv": MatmulShape(8192, 1280),
    "llama-3.3-70b at TP 8 o": MatmulShape(1024, 8192),
    "llama-3.3-70b at TP 8 gate_up": MatmulShape(8192, 7168),
    "llama-3.3-70b at TP 8 down": MatmulShape(3584, 8192),
    "qwen3-8b gate_up": MatmulShape(4096, 24576),  # qkv and o as llama-3.1-8b
    "qwen3-8b down": MatmulShape(12288, 4096),
    "qwen3-30b-a3b qkv": MatmulShape(2048, 5120),
    "qwen3-30b-a3b o": MatmulShape(4096, 2048),
    "gemma-3-27b qkv": MatmulShape(5376, 8192),
    "gemma-3-27b o": MatmulShape(4096, 5376),
    "gemma-3-27b gate_up": MatmulShape(5376, 43008),
    "gemma-3-27b down": MatmulShape(21504, 5376),
    "gpt-oss-20b qkv": MatmulShape(2880, 5120),
    "gpt-oss-20b o": MatmulShape(4096, 2880),
    "smollm2-135m qkv": MatmulShape(576, 960),
    "smollm2-135m o": MatmulShape(576, 576),
    "smollm2-135m gate_up": MatmulShape(576, 3072),
    "smollm2-135m down": MatmulShape(1536, 576),
}
