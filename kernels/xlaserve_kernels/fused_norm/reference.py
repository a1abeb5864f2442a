"""Residual and RMSNorm in float64: the specification. Plain numpy; for tests."""

import numpy as np


def add_rms_norm_reference(x, residual, weight, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """x, residual [T, D], weight [D] -> float64 (norm of x + residual, x + residual). The sum has residual's dtype."""
    total = (np.asarray(x, np.float64) + np.asarray(residual, np.float64)).astype(residual.dtype).astype(np.float64)
    root = np.sqrt((total * total).mean(axis=-1, keepdims=True) + eps)
    return total / root * np.asarray(weight, np.float64), total
