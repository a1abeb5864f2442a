"""Gated activation in float64: the specification. Plain numpy; for tests."""

import numpy as np


def gated_activation_reference(gate_up, activation: str) -> np.ndarray:
    """gate_up [T, 2F], the gate's half first -> float64 [T, F]."""
    gate, up = np.split(np.asarray(gate_up, np.float64), 2, axis=-1)
    if activation == "silu":
        return gate / (1 + np.exp(-gate)) * up
    assert activation == "gelu_pytorch_tanh"
    return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
