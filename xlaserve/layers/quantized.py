"""Weights of fewer bits: a pytree that stands in a layer where an array does, and its matrix product."""

import dataclasses

import flax.struct
import jax
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec
from xlaserve_kernels.quantized_matmul import MODES, QuantizedWeight, quantized_matmul


@flax.struct.dataclass
class QuantizedArray:
    """A weight [out, in], and all that its product needs to know beside the activations."""

    weight: QuantizedWeight
    backend: str = flax.struct.field(pytree_node=False)
    sharding: NamedSharding | None = flax.struct.field(pytree_node=False, default=None)  # of [out, in]: tensor parallel


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
