"""The quantised matrix product in float64: the specification. Plain numpy; for tests."""

import numpy as np

from xlaserve_kernels.quantized_matmul.weight import QuantizedWeight


def dequantize_reference(weight: QuantizedWeight) -> np.ndarray:
    """The weight that the quantised one stands for, float64 [out, in]."""
    values, scales = np.asarray(weight.values), np.asarray(weight.scales, np.float64)
    if values.ndim == 3:  # interleaved
        values = values.swapaxes(1, 2).reshape(-1, weight.in_features)[: weight.out_features]
    if weight.mode != "w4a16":
        return values.astype(np.float64) * scales[:, None]
    group = weight.group_size
    assert group is not None
    zeros = np.full(scales.shape, 8.0) if weight.zeros is None else np.asarray(weight.zeros, np.float64)
    dense = np.zeros((weight.out_features, weight.in_features))
    for i in range(weight.in_features):
        byte = values[:, i // (2 * group) * group + i % group]
        value = byte >> 4 if i // group % 2 else byte & 15
        dense[:, i] = (value - zeros[i // group]) * scales[i // group]
    return dense


def quantized_matmul_reference(x, x_scales, weight: QuantizedWeight, bias=None) -> np.ndarray:
    """x [T, in] -> float64 [T, out]: x * weight^T + bias.

    x_scales [T, in / group] or [T, 1] where x holds quantised values, else None. bias [out] or None.
    """
    x = np.asarray(x).astype(np.float64)
    if x_scales is not None:
        x = x * np.repeat(np.asarray(x_scales, np.float64), x.shape[1] // x_scales.shape[1], axis=1)
    y = x @ dequantize_reference(weight).T
    return y if bias is None else y + np.asarray(bias, np.float64)
