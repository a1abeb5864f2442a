"""Matrix products with quantised weights."""

from xlaserve_kernels.quantized_matmul.api import IMPLEMENTATIONS, quantized_matmul
from xlaserve_kernels.quantized_matmul.weight import MODES, QuantizedWeight, quantize_weight

__all__ = ["IMPLEMENTATIONS", "MODES", "QuantizedWeight", "quantize_weight", "quantized_matmul"]
