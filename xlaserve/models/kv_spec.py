"""What KV memory a model needs: its layers in groups that share block tables."""

from dataclasses import dataclass

from xlaserve.models.config import ModelConfig


@dataclass(frozen=True)
class KVSpec:
    """One group: layers that see the same past, so that one block table serves them all."""

    name: str  # "full" or "sliding"
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None


def kv_specs(config: ModelConfig) -> tuple[KVSpec, ...]:
    """The groups of `config`, full attention first; one group when all layers are alike."""
    groups = []
    for kind in ("full", "sliding"):
        layers = tuple(i for i, layer_type in enumerate(config.layer_types) if layer_type == kind)
        window = config.sliding_window if kind == "sliding" else None
        if layers:
            groups.append(KVSpec(kind, layers, config.num_kv_heads, config.head_dim, window))
    return tuple(groups)


def group_of_layer(specs: tuple[KVSpec, ...]) -> dict[int, int]:
    """Layer index -> index of its group in `specs`."""
    return {layer: group for group, spec in enumerate(specs) for layer in spec.layers}
