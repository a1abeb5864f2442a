"""Where arrays live: one mesh, and one table from the logical axes of a weight to the axes of the mesh."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "model")

RULES: dict[str, str | None] = {
    "vocab": "model",
    "heads": "model",
    "kv_heads": "model",
    "mlp": "model",
    "embed": None,
}


def make_mesh() -> Mesh:
    """The mesh of one device: the platform's first."""
    return Mesh(np.array([[jax.devices()[0]]]), MESH_AXES)


def sharding_of(mesh: Mesh, axes: Sequence[str | None]) -> NamedSharding:
    """The sharding of an array whose dimensions have these logical axes (None = not sharded)."""
    return NamedSharding(mesh, PartitionSpec(*(RULES[axis] if axis else None for axis in axes)))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
