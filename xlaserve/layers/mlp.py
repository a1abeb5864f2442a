"""The gated feed-forward block of Llama and its descendants."""

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from xlaserve.layers.linear import Linear, linear, linear_spec, linears

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


@flax.struct.dataclass
class MLP:
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear


def mlp_spec(hidden_size: int, intermediate_size: int, *, bias: bool) -> MLP:
    return MLP(
        gate_proj=linear_spec(intermediate_size, hidden_size, "mlp", "embed", bias=bias),
        up_proj=linear_spec(intermediate_size, hidden_size, "mlp", "embed", bias=bias),
        down_proj=linear_spec(hidden_size, intermediate_size, "embed", "mlp", bias=bias),
    )


def gated_mlp(x: Array, p: MLP, activation: str) -> Array:
    """x [T, D] -> [T, D]: down(activation(gate(x)) * up(x)), between the products in float32, rounded once."""
    gate, up = (y.astype(jnp.float32) for y in linears(x, (p.gate_proj, p.up_proj)))
    return linear((ACTIVATIONS[activation](gate) * up).astype(x.dtype), p.down_proj)
