"""`quantization.quantize` in numpy: for weights on their way to a device; compiling for each shape takes longer."""

import numpy as np

from xlaserve_kernels.quantization import LARGEST, SMALLEST_SCALE

_BLOCK_VALUES = 2**18  # quantised at a time: the temporaries stay in the processor's cache


def quantize_on_host(x: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """x float [out, in] -> values of `dtype` [out, in] and scales float32 [out]: bit by bit what `quantize` gives.

    NaN and infinity make a scale NaN or infinite. Raises KeyError for another dtype than int8 or float8_e4m3fn.
    """
    step = np.float32(1 / LARGEST[dtype.name])  # XLA divides by a constant like this, too
    values, scales = np.empty(x.shape, dtype), np.empty(len(x), np.float32)
    rows = max(1, _BLOCK_VALUES // x.shape[1])
    with np.errstate(invalid="ignore"):
        for first in range(0, len(x), rows):
            block = x[first : first + rows].astype(np.float32)
            scale = np.maximum(np.maximum(block.max(axis=1), -block.min(axis=1)) * step, SMALLEST_SCALE)
            scale = ((scale.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
            block /= scale[:, None]
            if dtype == np.int8:
                np.rint(block, out=block)
            scales[first : first + rows] = scale
            values[first : first + rows] = block.astype(dtype)
    return values, scales
