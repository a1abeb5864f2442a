"""A weight is described once: shape, logical axes, init. Loading, sharding, random init and planning follow from it.

Parameter pytrees keep Hugging Face's nesting and names, so a leaf's path *is* its checkpoint name.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import jax
import numpy as np

Axis = Literal["vocab", "embed", "heads", "kv_heads", "mlp"]


@dataclass(frozen=True)
class ArraySpec:
    """`axes` names each dimension; xlaserve/sharding.py maps the names to mesh axes."""

    shape: tuple[int, ...]
    axes: tuple[Axis | None, ...]
    init: Literal["normal", "zeros", "ones"] = "normal"
    dtype: np.dtype | None = None  # None: the model's

    def __post_init__(self):
        assert len(self.shape) == len(self.axes)


def is_spec(node: Any) -> bool:
    return isinstance(node, ArraySpec)


def named_specs(specs: Any) -> Iterator[tuple[str, ArraySpec]]:
    """Yields ("model.layers.0.self_attn.q_proj.weight", spec) for each leaf of a tree of ArraySpec."""
    for path, spec in jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec):
        yield _name(path), spec


def map_specs(function: Callable[[str, Any], Any], specs: Any, is_leaf: Callable[[Any], bool] = is_spec) -> Any:
    """The same tree with `function(name, spec)` in place of each spec, or of each node that `is_leaf`."""
    return jax.tree_util.tree_map_with_path(lambda path, spec: function(_name(path), spec), specs, is_leaf=is_leaf)


def spec_bytes(specs: Any, dtype: np.dtype) -> int:
    """Of the arrays that a tree of ArraySpec describes, in a model of `dtype`."""
    return sum(prod(spec.shape) * (spec.dtype or dtype).itemsize for _, spec in named_specs(specs))


def _name(path: Iterable[Any]) -> str:
    return ".".join(map(_part, path))


def _part(key: Any) -> str:
    if isinstance(key, jax.tree_util.GetAttrKey):
        return key.name
    return str(key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key)
