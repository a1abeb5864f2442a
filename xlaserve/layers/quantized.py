"""Weights of fewer bits: a pytree that stands in a layer where an array does, what it is made of, and its products."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from xlaserve_kernels.quantized_matmul import (
    MODES,
    SIDE_BY_SIDE,
    QuantizedWeight,
    quantized_matmul,
    quantized_matmuls,
    wants_interleaved,
)

from xlaserve.layers.params import ArraySpec, is_spec, map_specs
from xlaserve.sharding import sharding_of


@flax.struct.dataclass
class QuantizedArray:
    """A weight [out, in], and all that its product needs to know beside the activations.

    In a tree of specs the parts of `weight` are ArraySpecs.
    """

    weight: QuantizedWeight
    backend: str = flax.struct.field(pytree_node=False)
    # Of [out, in] where devices share it, over an abstract mesh: programs are pickled with the tree of their arguments.
    sharding: NamedSharding | None = flax.struct.field(pytree_node=False, default=None)
    dtype: np.dtype = flax.struct.field(pytree_node=False, default=np.dtype(np.float32))  # of its rows as embeddings


@dataclass(frozen=True)
class WeightFormat:
    """How one weight is stored in a checkpoint that is quantised, and what multiplies with it."""

    mode: str  # of MODES
    group_size: int | None = None  # w4a16: inputs that share a scale
    scales: str = "float32"  # their dtype, and that of zeros
    has_zeros: bool = False
    backend: str = "xla"


@dataclass(frozen=True)
class Quantization:
    """How the matrices of a model are stored, and what multiplies with them. Vectors stay as they are."""

    name: str  # of the setting, or of the checkpoint's method
    mode: str  # of MODES: one with 8 bits; of a checkpoint, that of its first weight
    backend: str
    group_sizes: tuple[int, ...] = ()  # of activations that share a scale: the first that divides a weight's inputs
    formats: tuple[tuple[str, WeightFormat], ...] = ()  # of a checkpoint's weights that are quantised, by their names

    def stored(self, specs: Any, dtype: np.dtype, mesh: Mesh | None = None) -> Any:
        """The tree of `specs` with QuantizedArrays for its matrices, or for those that the checkpoint has quantised.

        mesh: of devices that share them; None: of one.
        """
        formats = dict(self.formats)

        def kept(name: str, spec: ArraySpec) -> ArraySpec | QuantizedArray:
            if name in formats:
                return self._stored_parts(spec, formats[name], dtype, mesh)
            return spec if formats or len(spec.shape) != 2 else self._parts(spec, dtype, mesh)

        return map_specs(kept, specs)

    def _stored_parts(
        self, spec: ArraySpec, stored: WeightFormat, dtype: np.dtype, mesh: Mesh | None
    ) -> QuantizedArray:
        if not MODES[stored.mode].packed:
            return dataclasses.replace(self, mode=stored.mode, backend=stored.backend)._parts(spec, dtype, mesh)
        (num_outputs, num_inputs), size = spec.shape, stored.group_size or 1
        groups = num_inputs // size
        values = ArraySpec((num_outputs, -(-groups // 2) * size), spec.axes, dtype=MODES[stored.mode].values)
        scales = ArraySpec((groups, num_outputs), (None, spec.axes[0]), dtype=np.dtype(stored.scales))
        weight: Any = QuantizedWeight(
            values, scales, scales if stored.has_zeros else None,  # pyright: ignore[reportArgumentType]
            stored.mode, size,
        )  # fmt: skip
        return QuantizedArray(weight, stored.backend, None, dtype)

    def _parts(self, spec: ArraySpec, dtype: np.dtype, mesh: Mesh | None) -> QuantizedArray:
        sharding, num_inputs = None, spec.shape[1]
        if mesh is not None and mesh.size > 1:
            sharding = sharding_of(mesh, spec.axes)
            num_inputs = sharding.shard_shape(spec.shape)[1]
            sharding = NamedSharding(mesh.abstract_mesh, sharding.spec)
        values = dataclasses.replace(spec, dtype=MODES[self.mode].values)
        if wants_interleaved(self.backend, self.mode):
            shape = (-(-spec.shape[0] // SIDE_BY_SIDE), spec.shape[1], SIDE_BY_SIDE)
            values = dataclasses.replace(values, shape=shape, axes=(*spec.axes, None))
        scales = ArraySpec(spec.shape[:1], spec.axes[:1], dtype=np.dtype(np.float32))
        group_size = next((size for size in self.group_sizes if num_inputs % size == 0), None)
        weight = QuantizedWeight(values, scales, None, self.mode, group_size)  # pyright: ignore[reportArgumentType]
        return QuantizedArray(weight, self.backend, sharding, dtype)


def is_stored_weight(node: Any) -> bool:
    """A leaf of what checkpoints have one tensor for, in a tree of specs."""
    return is_spec(node) or isinstance(node, QuantizedArray)


def plain_specs(specs: Any) -> Any:
    """The tree as checkpoints have it: without what `Quantization.stored` has made of it."""

    def plain(_: str, spec: ArraySpec | QuantizedArray) -> ArraySpec:
        if not isinstance(spec, QuantizedArray):
            return spec
        weight, values = spec.weight, spec.weight.values
        assert isinstance(values, ArraySpec)
        shape = (weight.out_features, weight.in_features)
        return dataclasses.replace(values, shape=shape, axes=values.axes[:2], dtype=None)

    return map_specs(plain, specs, is_stored_weight)


def quantized_rows(p: QuantizedArray, index: Array) -> Array:
    """Rows of the weight, as embeddings: index int32 [T] -> [T, in] in p.dtype; zeros for an index behind the last.

    Of a weight with scales per output.
    """
    where, values = index, p.weight.values
    if values.ndim == 3:  # interleaved
        where = index // SIDE_BY_SIDE, slice(None), index % SIDE_BY_SIDE
    taken = values.at[where].get(mode="fill", fill_value=0)
    scales = p.weight.scales.at[index].get(mode="fill", fill_value=0)
    return (taken.astype(jnp.float32) * scales[:, None]).astype(p.dtype)


def quantized_products(x: Array, weights: Sequence[QuantizedArray], biases: Sequence[Array | None]) -> list[Array]:
    """`quantized_product` of the same x with each, which is quantised once where the weights are alike."""
    alike = {(p.backend, p.sharding, p.weight.mode, p.weight.group_size) for p in weights}
    if len(alike) == 1 and weights[0].sharding is None:
        return quantized_matmuls(x, [p.weight for p in weights], biases, backend=weights[0].backend)
    return [quantized_product(x, p, bias) for p, bias in zip(weights, biases, strict=True)]


def quantized_product(x: Array, p: QuantizedArray, bias: Array | None = None) -> Array:
    """x [T, in] (float32 or bfloat16) times p [out, in], plus bias [out] -> [T, out] in x's dtype.

    Where devices share the inputs, each quantises its own and their products are added in x's dtype, as those of plain
    weights are: one collective, of half the bytes of float32 sums. Raises ValueError for w4a16 on several devices:
    where its inputs may be cut, a byte being two of them, is not worked out.
    """
    if p.sharding is None:
        return quantized_matmul(x, p.weight, bias, backend=p.backend)
    if MODES[p.weight.mode].packed:
        raise ValueError(f"weight: {p.weight.mode} cannot be shared by several devices")
    out_axis, in_axis = p.sharding.spec

    def multiply(x: Array, weight: QuantizedWeight, bias: Array | None) -> Array:
        if in_axis is None:
            return quantized_matmul(x, weight, bias, backend=p.backend)
        y = lax.psum(quantized_matmul(x, weight, backend=p.backend), in_axis)
        return y if bias is None else (y + bias).astype(y.dtype)

    of_outputs = PartitionSpec(out_axis)
    of_weight = dataclasses.replace(p.weight, values=p.sharding.spec, scales=of_outputs)
    return jax.shard_map(
        multiply, mesh=p.sharding.mesh, in_specs=(PartitionSpec(None, in_axis), of_weight, of_outputs),
        out_specs=PartitionSpec(None, out_axis),
        check_vma=False,  # Pallas kernels do not say how their results vary over the devices
    )(x, p.weight, bias)  # fmt: skip


def quantized_logits(x: Array, p: QuantizedArray) -> Array:
    """x [T, in] times the part of p [out, in] that is here -> float32 [T, out]."""
    return quantized_matmul(x, p.weight, backend=p.backend, out_dtype=jnp.float32)
