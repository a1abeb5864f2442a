"""The grouped matrix product in float64: the specification. Plain numpy; for tests."""

import numpy as np


def grouped_matmul_reference(x, weights, group_sizes) -> np.ndarray:
    """x [T, in] sorted by group, weights [E, in, out], group_sizes int [E] -> float64 [T, out]; zeros behind groups."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    y = np.zeros((x.shape[0], weights.shape[2]))
    start = 0
    for weight, size in zip(weights, np.asarray(group_sizes), strict=True):
        y[start : start + size] = x[start : start + size] @ weight
        start += size
    return y
