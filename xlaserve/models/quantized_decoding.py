"""Stored words to values, scales and zero points, and these to the kernels' layout: plain arithmetic on arrays.

The orders of values in a word are those of the programs that write them: AutoAWQ's WQLinear_GEMM, AutoGPTQ's
QuantLinear.pack, and pack_to_int32 of compressed-tensors.
"""

from dataclasses import dataclass

import numpy as np
from xlaserve_kernels.quantized_matmul import GROUP_SIZES, MODES

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of output 8n + i in word n: AutoAWQ writes 0, 2, 4, 6, 1, 3, 5, 7
MIDDLE = 8  # of 4 bits: the zero point where none is stored


@dataclass(frozen=True)
class Decoded:
    """weight[o, i] = (values[o, i] - zeros[o, g]) * scales[o, g], where input i belongs to group g."""

    values: np.ndarray  # uint8 below 16, int8 or float8_e4m3fn [out, in]
    scales: np.ndarray  # float32 or bfloat16 [out, groups]
    zeros: np.ndarray | None = None  # uint8 [out, groups]; None: MIDDLE for uint8, else 0

    @property
    def dequantized(self) -> np.ndarray:
        """float32 [out, in]."""
        group = self.values.shape[1] // self.scales.shape[1]
        values = self.values.astype(np.float32)
        if self.zeros is not None:
            values -= np.repeat(self.zeros, group, axis=1)
        elif self.values.dtype == np.uint8:
            values -= MIDDLE
        return values * np.repeat(self.scales.astype(np.float32), group, axis=1)


def split_words(words: np.ndarray, bits: int) -> np.ndarray:
    """int32 [..., n], each of 32 / bits values, the lowest bits first -> uint8 [..., n * 32 / bits]."""
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1)


def awq_values(words: np.ndarray) -> np.ndarray:
    """qweight [in, out / 8] or qzeros [groups, out / 8] -> uint8 [out, in] or [out, groups]."""
    places = split_words(words, 4).reshape(*words.shape, 8)
    return places[..., _AWQ_PLACES].reshape(len(words), -1).T


def gptq_values(words: np.ndarray) -> np.ndarray:
    """qweight [in / 8, out] -> uint8 [out, in]."""
    return split_words(words.T, 4)


def gptq_zeros(words: np.ndarray, offset: int) -> np.ndarray:
    """qzeros [groups, out / 8] -> uint8 [out, groups]; offset: 1 where each was written less one.

    Raises ValueError for a zero point that would be 16: of what was 0, programs make 16 or 0.
    """
    zeros = split_words(words, 4).T + np.uint8(offset)
    if (zeros > 15).any():
        raise ValueError("a zero point is stored as 15: whether that means 0 or 16 is not agreed on")
    return zeros


def packed_values(words: np.ndarray, bits: int, num_inputs: int) -> np.ndarray:
    """weight_packed [out, ...] -> uint8 below 16, or int8, [out, in]."""
    values = split_words(words, bits)[:, :num_inputs]
    return values if bits == 4 else (values ^ 128).view(np.int8)


def packed_zeros(words: np.ndarray, num_outputs: int) -> np.ndarray:
    """weight_zero_point [out / 8, groups] of 4 bits -> uint8 [out, groups]."""
    return split_words(words.T, 4)[:, :num_outputs].T


def kernel_group(num_inputs: int, group_size: int | None) -> int | None:
    """Of the sizes that kernels take, the largest that cuts every stored group evenly; None: there is none."""
    return max((size for size in GROUP_SIZES if (group_size or num_inputs) % size == 0), default=None)


def kernel_parts(decoded: Decoded, mode: str, group: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Values, scales and zeros as a `QuantizedWeight` of `mode` has them; group: of 4-bit weights."""
    if group is None or not MODES[mode].packed:
        return decoded.values, decoded.scales[:, 0], None
    num_outputs, num_inputs = decoded.values.shape
    groups = num_inputs // group

    def by_group(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.repeat(array, groups // array.shape[1], axis=1).T)

    values = decoded.values.reshape(num_outputs, groups, group)
    pairs = np.zeros((num_outputs, -(-groups // 2), group), np.uint8)
    pairs |= values[:, 0::2]
    pairs[:, : groups // 2] |= values[:, 1::2] << 4
    scales = by_group(decoded.scales)
    zeros = None if decoded.zeros is None else by_group(decoded.zeros).astype(scales.dtype)
    return pairs.reshape(num_outputs, -1), scales, zeros
