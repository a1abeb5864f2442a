"""The least time that a step takes: its bytes at the chip's bandwidth, or its operations at its peak, if that is more.

No step is faster. Real ones are slower: nothing is counted here of activations, of what devices tell each other, or of
launching. A mixed workload has its own times: `xlaserve bench scheduler`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xlaserve.layers.params import named_specs, spec_bytes
from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import FAMILIES
from xlaserve.targets import Target


@dataclass(frozen=True)
class Step:
    """Seconds."""

    bandwidth: float
    arithmetic: float

    @property
    def least(self) -> float:
        return max(self.bandwidth, self.arithmetic)

    @property
    def limit(self) -> str:
        return "bandwidth" if self.bandwidth >= self.arithmetic else "arithmetic"


@dataclass(frozen=True)
class Floors:
    """Of a model on all devices of a target, which share the work evenly."""

    config: ModelConfig
    weight_bytes: int  # read in every step
    matrix_weights: int  # of the layers, each multiplied with once per token
    kv_vector_bytes: int  # of a key, or a value, of one head
    bytes_per_second: float
    operations_per_second: float  # of attention
    products_per_second: float  # operations, of products with weights

    @classmethod
    def of(
        cls, config: ModelConfig, target: Target, dtype: np.dtype, kv_vector_bytes: int,
        quantization: Quantization | None = None,
    ) -> "Floors | None":  # fmt: skip
        """None for a CPU, whose figures are not known. dtype: of weights that are not quantised."""
        chip = target.chip
        if chip is None:
            return None
        specs: Any = FAMILIES[config.family].param_specs(config)
        stored = quantization.stored(specs, dtype) if quantization else specs
        read = spec_bytes(stored, dtype)
        if not config.tie_word_embeddings:  # of embeddings that are not the head too only the tokens' rows are read
            read -= spec_bytes(stored.model.embed_tokens, dtype)
        shapes = [spec.shape for name, spec in named_specs(specs) if ".layers." in name]
        matrices = sum(prod(shape) for shape in shapes if len(shape) == 2)
        chips = target.num_devices / chip.devices_per_chip
        # Kernels multiply float8 in 16 bits.
        products = chip.int8 if quantization and quantization.mode == "w8a8" else None
        return cls(
            config, read, matrices, kv_vector_bytes,
            chips * chip.hbm_bandwidth, chips * chip.bf16, chips * (products or chip.bf16),
        )  # fmt: skip

    def step(self, rows: Sequence[tuple[int, int]]) -> Step:
        """rows: of each its new tokens, and its context with them. Every row samples one token."""
        config = self.config
        tokens = sum(new for new, _ in rows)
        kv_tokens = pairs = 0  # over all layers
        for window in self._windows():
            kv_tokens += sum(min(context, window + new - 1) for new, context in rows)
            pairs += sum(_pairs(new, context, window) for new, context in rows)
        kv_bytes = kv_tokens * 2 * config.num_kv_heads * self.kv_vector_bytes
        products = 2 * tokens * self.matrix_weights + 2 * len(rows) * config.vocab_size * config.hidden_size
        attention = 4 * pairs * config.num_heads * config.head_dim
        return Step(
            (self.weight_bytes + kv_bytes) / self.bytes_per_second,
            products / self.products_per_second + attention / self.operations_per_second,
        )

    def decode(self, num_rows: int, context: int) -> Step:
        """A token of each row: what the time between two tokens cannot be under."""
        return self.step([(1, context)] * num_rows)

    def prefill(self, length: int, chunk: int) -> Step:
        """A prompt that has the devices to itself, `chunk` tokens a step: what its first token cannot come before."""
        steps = [self.step([(min(chunk, length - at), min(at + chunk, length))]) for at in range(0, length, chunk)]
        return Step(sum(step.bandwidth for step in steps), sum(step.arithmetic for step in steps))

    def _windows(self) -> list[int]:
        """Of each layer, in tokens."""
        config = self.config
        return [
            config.sliding_window or config.max_position_embeddings
            if kind == "sliding"
            else config.max_position_embeddings
            for kind in config.layer_types
        ]


def _pairs(new: int, context: int, window: int) -> int:
    """Of a query and a key that it sees: of the last `new` of `context` tokens."""
    first = context - new + 1  # keys that the first query sees, itself included
    whole = max(0, min(context, window) - first + 1)  # queries that see all before them
    return whole * (2 * first + whole - 1) // 2 + (new - whole) * window
