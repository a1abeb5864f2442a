"""The gate of a feed-forward block, and the quantisation behind it, in one pass."""

from xlaserve_kernels.gated_activation.api import IMPLEMENTATIONS, gated_activation

__all__ = ["IMPLEMENTATIONS", "gated_activation"]
