"""Gated activation: argument checks and dispatch to the backend named."""

import functools

import jax.numpy as jnp
from jax import Array

from xlaserve_kernels.gated_activation.activations import ACTIVATIONS
from xlaserve_kernels.gated_activation.pallas_gpu import gated_activation_pallas_gpu
from xlaserve_kernels.gated_activation.pallas_tpu import gated_activation_pallas_tpu
from xlaserve_kernels.gated_activation.xla import gated_activation_xla

IMPLEMENTATIONS = {
    "xla": gated_activation_xla,
    "pallas_tpu": gated_activation_pallas_tpu,
    "pallas_tpu_interpret": functools.partial(gated_activation_pallas_tpu, interpret=True),
    "pallas_gpu": gated_activation_pallas_gpu,
    "pallas_gpu_interpret": functools.partial(gated_activation_pallas_gpu, interpret=True),
}


def gated_activation(
    gate_up: Array, activation: str, quantize_group: int | None = None, *, backend: str
) -> Array | tuple[Array, Array]:
    """gate_up [T, 2F], the gate's half first -> activation(gate) * up, [T, F].

    Computed in float32 and rounded once, to gate_up's dtype (float32 or bfloat16); or, given `quantize_group`, to int8
    with a scale for each that many outputs, a pair as `quantize_groups(x, int8, quantize_group)` gives. `activation`:
    silu or gelu_pytorch_tanh. Raises ValueError naming the argument at fault.
    """
    if backend not in IMPLEMENTATIONS:
        raise ValueError(f"backend {backend!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r}: must be one of {', '.join(ACTIVATIONS)}")
    if gate_up.ndim != 2 or gate_up.shape[1] % 2 or gate_up.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"gate_up is {gate_up.dtype}{list(gate_up.shape)}: must be [T, 2F] of float32 or bfloat16")
    size = gate_up.shape[1] // 2
    if quantize_group is not None and (quantize_group < 1 or size % quantize_group):
        raise ValueError(f"quantize_group {quantize_group}: must divide {size}")
    return IMPLEMENTATIONS[backend](gate_up, activation, quantize_group)
