"""A weight is described once: shape, logical axes, init. Loading, sharding, random init and planning follow from it.

Parameter pytrees keep Hugging Face's nesting and names, so a leaf's path *is* its checkpoint name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax

Axis = Literal["vocab", "embed", "heads", "kv_heads", "mlp"]


@dataclass(frozen=True)
class ArraySpec:
    """`axes` names each dimension; xlaserve/sharding.py maps the names to mesh axes."""

    shape: tuple[int, ...]
    axes: tuple[Axis | None, ...]
    init: Literal["normal", "zeros", "ones"] = "normal"

    def __post_init__(self):
        assert len(self.shape) == len(self.axes)


def named_specs(specs: Any) -> Iterator[tuple[str, ArraySpec]]:
    """Yields ("model.layers.0.self_attn.q_proj.weight", spec) for each leaf of a tree of ArraySpec."""
    for path, spec in jax.tree_util.tree_leaves_with_path(specs, is_leaf=_is_spec):
        yield ".".join(_part(key) for key in path), spec


def map_specs(function, specs: Any) -> Any:
    """The same tree with `function(name, spec)` in place of each spec."""
    named = {name: function(name, spec) for name, spec in named_specs(specs)}
    leaves = list(named.values())
    treedef = jax.tree_util.tree_structure(specs, is_leaf=_is_spec)
    return jax.tree_util.tree_unflatten(treedef, leaves)


def _is_spec(node: Any) -> bool:
    return isinstance(node, ArraySpec)


def _part(key: Any) -> str:
    if isinstance(key, jax.tree_util.GetAttrKey):
        return key.name
    return str(key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key)
