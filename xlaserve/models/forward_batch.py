"""What a model's forward pass is given beside its weights."""

from dataclasses import dataclass

import flax.struct
from jax import Array
from jax.sharding import Mesh
from xlaserve_kernels.paged_attention import KVLayout

from xlaserve.layers.attention import AttentionMetadata, AttentionOptions
from xlaserve.models.config import ModelConfig
from xlaserve.models.kv_spec import group_of_layer, kv_specs


@flax.struct.dataclass
class ForwardBatch:
    """A step's tokens, padded to a bucket. Padding tokens stand in no row and write to the null block."""

    token_ids: Array  # int32 [T]
    positions: Array  # int32 [T], in their rows
    output_tokens: Array  # int32 [S], the tokens whose hidden states feed a head
    groups: tuple[AttentionMetadata, ...]  # one per layer group


@dataclass(frozen=True)
class AttentionPlan:
    """How each layer attends: fixed when the program is compiled."""

    options: tuple[AttentionOptions, ...]  # per layer
    group: tuple[int, ...]  # per layer, its index in ForwardBatch.groups


def attention_plan(
    config: ModelConfig, backend: str, layouts: tuple[KVLayout, ...], mesh: Mesh | None = None
) -> AttentionPlan:
    """`layouts` has one entry per layer group, for the heads of one device. `mesh`: of several devices."""
    specs = kv_specs(config)
    groups = group_of_layer(specs)
    options = tuple(
        AttentionOptions(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.query_scale,
            backend=backend,
            layout=layouts[groups[layer]],
            sliding_window=specs[groups[layer]].sliding_window,
            mesh=mesh,
        )
        for layer in range(config.num_layers)
    )
    return AttentionPlan(options, tuple(groups[layer] for layer in range(config.num_layers)))
