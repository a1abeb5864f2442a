"""Matrix products of tokens sorted by group, each group with a weight of its own: mixtures of experts."""

from xlaserve_kernels.grouped_matmul.api import IMPLEMENTATIONS, grouped_matmul

__all__ = ["IMPLEMENTATIONS", "grouped_matmul"]
