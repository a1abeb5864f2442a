"""Where arrays live: one mesh, and one table from the logical axes of a weight to the axes of the mesh."""

from collections.abc import Sequence
from typing import Any

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


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of these devices, which share each layer; by default of one: the platform's first."""
    return Mesh(np.array(devices or jax.devices()[:1]).reshape(1, -1), MESH_AXES)


def sharding_of(mesh: Mesh, axes: Sequence[str | None]) -> NamedSharding:
    """The sharding of an array whose dimensions have these logical axes (None = not sharded)."""
    return NamedSharding(mesh, PartitionSpec(*(RULES[axis] if axis else None for axis in axes)))


def mesh_of(sharding: NamedSharding) -> Mesh:
    assert isinstance(sharding.mesh, Mesh)  # of devices, not an abstract one
    return sharding.mesh


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
