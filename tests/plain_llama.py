"""Llama as its paper has it, in numpy's float64 over the whole prompt: slow, and nothing of it is xlaserve's."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Tensors = dict[str, np.ndarray]
Rounding = Callable[[np.ndarray], np.ndarray]


def plain_logits(
    config: dict[str, Any],
    tensors: Tensors,
    token_ids: list[int],
    rounded_kv: Rounding = lambda x: x,
    rounded_inputs: Rounding = lambda x: x,
) -> np.ndarray:
    """float64 [T, V]. config: a config.json, with default ropes.

    rounded_kv: what is read of keys and values [T, K, H]. rounded_inputs: what is multiplied with layers' matrices.
    """
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    eps, head_dim = config["rms_norm_eps"], config["head_dim"]
    positions = np.arange(len(token_ids))
    x = weights["model.embed_tokens.weight"][token_ids]
    for layer in range(config["num_hidden_layers"]):
        named = _of(weights, f"model.layers.{layer}.")
        h = rounded_inputs(_norm(x, named("input_layernorm"), eps))
        q, k, v = ((h @ named(f"self_attn.{name}_proj").T).reshape(len(x), -1, head_dim) for name in "qkv")
        q, k = (_rotate(each, positions, config["rope_parameters"]["rope_theta"]) for each in (q, k))
        k, v = (np.repeat(rounded_kv(each), q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("qnh,knh->nqk", q, k) / np.sqrt(head_dim)
        scores = np.where(positions <= positions[:, None], scores, -np.inf)
        attended = np.einsum("nqk,knh->qnh", _softmax(scores), v).reshape(len(x), -1)
        x = x + rounded_inputs(attended) @ named("self_attn.o_proj").T
        h = rounded_inputs(_norm(x, named("post_attention_layernorm"), eps))
        gate, up = h @ named("mlp.gate_proj").T, h @ named("mlp.up_proj").T
        x = x + rounded_inputs(gate / (1 + np.exp(-gate)) * up) @ named("mlp.down_proj").T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm(x, weights["model.norm.weight"], eps) @ head.T


def plain_logprobs(*arguments: Any, **options: Any) -> np.ndarray:
    """float64 [T, V], of the arguments of `plain_logits`."""
    logits = plain_logits(*arguments, **options)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def rounded_vectors(dtype: str) -> Rounding:
    """Each vector on the last axis as int8, or as fp8 (e4m3), with a scale of its own that bfloat16 holds."""
    largest, narrow = {"int8": (127, np.rint), "fp8": (448, lambda x: x.astype(ml_dtypes.float8_e4m3fn))}[dtype]

    def rounded(x: np.ndarray) -> np.ndarray:
        exact = (np.abs(x).max(axis=-1, keepdims=True) / largest).astype(np.float32)
        near = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
        above = np.nextafter(near.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16(np.inf)).astype(np.float32)
        scale = np.where(near < exact, above, near).astype(np.float64)
        return narrow((x / scale).astype(np.float32)).astype(np.float64) * scale

    return rounded


def _of(weights: Tensors, prefix: str) -> Callable[[str], np.ndarray]:
    return lambda name: weights[f"{prefix}{name}.weight"]


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """x [T, heads, H], halves of a head rotated against each other."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
