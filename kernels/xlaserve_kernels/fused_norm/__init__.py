"""The residual's sum, RMSNorm and the quantisation behind it, in one pass."""

from xlaserve_kernels.fused_norm.api import IMPLEMENTATIONS, add_rms_norm

__all__ = ["IMPLEMENTATIONS", "add_rms_norm"]
