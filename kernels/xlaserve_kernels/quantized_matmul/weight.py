"""A quantised weight: what it holds, and how a float weight becomes one."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve_kernels.quantization import quantize

GROUP_SIZES = (32, 64, 128)
SIDE_BY_SIDE = 16  # outputs of interleaved values; kWide of native/matmul.h
_FP8 = np.dtype(jnp.float8_e4m3fn)


@dataclass(frozen=True)
class Mode:
    values: np.dtype  # of the stored weight
    activations: np.dtype | None  # None: they stay as they are
    packed: bool = False  # two 4-bit values to a byte, scales by group


MODES = {
    "w8a8": Mode(np.dtype(np.int8), np.dtype(np.int8)),
    "w8a16": Mode(np.dtype(np.int8), None),
    "w4a16": Mode(np.dtype(np.uint8), None, packed=True),
    "fp8_w8a8": Mode(_FP8, _FP8),
    "fp8_w8a16": Mode(_FP8, None),
}


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("values", "scales", "zeros"),
    meta_fields=("mode", "group_size"),
)
@dataclass(frozen=True)
class QuantizedWeight:
    """A weight [out, in], as checkpoints have it.

    One scale per output channel: weight = values * scales[:, None]. In mode w4a16 one per output channel and group of
    `group_size` inputs: weight = (values - zeros) * scales, both stored by group, [in / group, out], as the rows that
    kernels spread over a tile of outputs; no zeros means 8. A byte holds the same place of two neighbouring groups, the
    former in its low half, so that either half is a whole group; an odd last group has a neighbour of zeros:

        byte [o, p * group + j]  =  value [o, 2p * group + j]  |  value [o, (2p + 1) * group + j] << 4

    In mode w8a16 values may be `interleaved`: so native code wants them.
    """

    values: Array  # int8 or float8_e4m3fn [out, in]; w4a16: uint8 [out, ceil(in / group / 2) * group]
    scales: Array  # float32 [out]; w4a16: float32 or bfloat16 [in / group, out]
    zeros: Array | None  # w4a16: [in / group, out], the dtype of scales; else None
    mode: str  # one of MODES
    group_size: int | None  # w8a8: of the activations, None for one per token; w4a16: of the weight; else None

    @property
    def out_features(self) -> int:
        return self.values.shape[0] if len(self.values.shape) == 2 else self.scales.shape[0]

    @property
    def in_features(self) -> int:
        packed = MODES[self.mode].packed
        return self.scales.shape[0] * (self.group_size or 1) if packed else self.values.shape[1]


def quantize_weight(weight: Array, mode: str, group_size: int | None = None) -> QuantizedWeight:
    """weight float [out, in] -> its quantised form. w4a16 has the zero points that use all 16 values of each group.

    Raises ValueError naming `mode` or `group_size`, and what is allowed.
    """
    check_mode(mode)
    check_group_size(group_size, mode, weight.shape[1])
    if not MODES[mode].packed:
        values, scales = quantize(weight, MODES[mode].values)
        return QuantizedWeight(values, scales, None, mode, group_size)
    groups = weight.astype(jnp.float32).reshape(weight.shape[0], -1, group_size or 1)
    low, high = jnp.minimum(groups.min(-1), 0), jnp.maximum(groups.max(-1), 0)  # [out, in / group]
    scales = jnp.maximum((high - low) / 15, 1e-30)
    zeros = jnp.round(-low / scales)
    values = jnp.clip(jnp.round(groups / scales[..., None]) + zeros[..., None], 0, 15).astype(jnp.uint8)
    return QuantizedWeight(pack(values), scales.T, zeros.T, mode, group_size)


def interleaved(values: np.ndarray) -> np.ndarray:
    """int8 [out, in] -> [ceil(out / SIDE_BY_SIDE), in, SIDE_BY_SIDE], zeros where there is no output."""
    out, inputs = values.shape
    padded = np.zeros((-(-out // SIDE_BY_SIDE) * SIDE_BY_SIDE, inputs), values.dtype)
    padded[:out] = values
    return np.ascontiguousarray(padded.reshape(-1, SIDE_BY_SIDE, inputs).swapaxes(1, 2))


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: must be one of {', '.join(MODES)}")


def check_group_size(group_size: int | None, mode: str, in_features: int) -> None:
    allowed = {"w4a16": GROUP_SIZES, "w8a8": (None, *GROUP_SIZES)}.get(mode, (None,))
    if group_size not in allowed:
        raise ValueError(f"group_size {group_size}: with {mode} it must be one of {', '.join(map(str, allowed))}")
    if group_size and in_features % group_size:
        raise ValueError(f"group_size {group_size}: must divide the {in_features} inputs")


def pack(values: Array) -> Array:
    """uint8 [out, groups, group], each below 16 -> uint8 [out, ceil(groups / 2) * group]."""
    out, groups, group = values.shape
    pairs = jnp.pad(values, ((0, 0), (0, groups % 2), (0, 0))).reshape(out, -1, 2, group)
    return (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(out, -1)


def unpack(packed: Array, groups: int, group: int) -> Array:
    """The inverse of pack."""
    pairs = packed.reshape(packed.shape[0], -1, group)
    return jnp.stack([pairs & 15, pairs >> 4], axis=2).reshape(packed.shape[0], -1, group)[:, :groups]
