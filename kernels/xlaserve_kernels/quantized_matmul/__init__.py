"""Matrix products with quantised weights."""

from xlaserve_kernels.quantized_matmul.api import (
    IMPLEMENTATIONS,
    implements,
    quantized_matmul,
    quantized_matmuls,
    wants_interleaved,
)
from xlaserve_kernels.quantized_matmul.weight import (
    GROUP_SIZES,
    MODES,
    SIDE_BY_SIDE,
    QuantizedWeight,
    interleaved,
    quantize_weight,
)

__all__ = [
    "GROUP_SIZES", "IMPLEMENTATIONS", "MODES", "SIDE_BY_SIDE", "QuantizedWeight", "implements", "interleaved",
    "quantize_weight", "quantized_matmul", "quantized_matmuls", "wants_interleaved",
]  # fmt: skip
