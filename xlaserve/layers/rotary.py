"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its long-context scalings, as in transformers."""

import math
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


@dataclass(frozen=True)
class RopeConfig:
    """`rope_type` and the scaling's parameters, under Hugging Face's names."""

    theta: float
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int = 0  # llama3, yarn
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None = derived from factor (and mscale, mscale_all_dim)
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


def rotary_table(positions: Array, rope: RopeConfig, head_dim: int) -> tuple[Array, Array]:
    """cos and sin, float32 [T, H / 2], for int32 positions [T]."""
    inv_freq, magnitude = inverse_frequencies(rope, head_dim)
    angles = positions[:, None].astype(jnp.float32) * inv_freq
    return lax.optimization_barrier((jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude))


def apply_rotary(x: Array, table: tuple[Array, Array]) -> Array:
    """Rotates x [T, heads, H] by halves (x[i] with x[i + H/2]), in float32, and rounds once: transformers rounds cos,
    sin and each product to x's dtype, which costs a CPU more than what it computes."""
    cos, sin = (part[:, None, None, :] for part in table)
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, -1)
    turned = halves * cos + jnp.flip(halves, axis=-2) * jnp.concatenate([-sin, sin], axis=-2)
    return turned.astype(x.dtype).reshape(x.shape)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """Radians per token, float32 [H / 2], and the factor on cos and sin."""
    inv_freq = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    match rope.rope_type:
        case "default":
            magnitude = 1.0
        case "linear":
            inv_freq, magnitude = inv_freq / rope.factor, 1.0
        case "llama3":
            inv_freq, magnitude = _llama3(inv_freq, rope), 1.0
        case "yarn":
            inv_freq, magnitude = _yarn(inv_freq, rope, head_dim)
    return inv_freq.astype(np.float32), magnitude


def _llama3(inv_freq: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Long wavelengths are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1)."""
    turns = rope.original_max_position_embeddings * inv_freq / (2 * math.pi)  # within the original context
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1 - smooth) * inv_freq / rope.factor + smooth * inv_freq


def _yarn(inv_freq: np.ndarray, rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """YaRN (arXiv:2309.00071): a ramp between stretched and kept dimensions, and a temperature on the scores."""

    def dimension(turns: float) -> float:
        """The (fractional) dimension that makes `turns` rotations within the original context."""
        wavelengths = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(wavelengths) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high = high + 0.001 if low == high else high
    stretched = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    inv_freq = inv_freq / rope.factor * stretched + inv_freq * (1 - stretched)
    return inv_freq, _yarn_magnitude(rope)


def _yarn_magnitude(rope: RopeConfig) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)
