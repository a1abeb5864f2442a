"""Matrix products with quantised weights."""

from xlaserve_kernels.quantized_matmul.api import IMPLEMENTATIONS, implements, quantized_matmul
from xlaserve_kernels.quantized_matmul.weight import GROUP_SIZES, MODES, QuantizedWeight, quantize_weight

__all__ = [
    "GROUP_SIZES", "IMPLEMENTATIONS", "MODES", "QuantizedWeight", "implements", "quantize_weight", "quantized_matmul"
]  # fmt: skip
