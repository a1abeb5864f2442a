"""Gated activation in XLA operations. Runs anywhere."""

import jax.numpy as jnp
from jax import Array

from xlaserve_kernels.gated_activation.activations import ACTIVATIONS
from xlaserve_kernels.quantization import quantize_groups


def gated_activation_xla(gate_up: Array, activation: str, quantize_group: int | None):
    """See api.py."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    y = ACTIVATIONS[activation](gate.astype(jnp.float32)) * up.astype(jnp.float32)
    return y.astype(gate_up.dtype) if quantize_group is None else quantize_groups(y, jnp.int8, quantize_group)
