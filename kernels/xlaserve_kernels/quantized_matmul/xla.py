"""The quantised matrix product in XLA operations. Runs anywhere."""

import jax.numpy as jnp
from jax import Array, lax

from xlaserve_kernels.cpu_features import multiplies_bfloat16
from xlaserve_kernels.quantized_matmul.weight import MODES, QuantizedWeight, unpack


def quantized_matmul_xla(
    x: Array, x_scales: Array | None, weight: QuantizedWeight, bias: Array | None, out_dtype
) -> Array:
    """See api.py; x holds quantised values where x_scales is given."""
    if MODES[weight.mode].packed:
        y = _product(x, _unpacked(weight, x.dtype))
    elif x_scales is None:
        y = _product_widened(x, weight.values) * weight.scales
    elif x_scales.shape[1] == 1:
        multiply = _product if x.dtype == jnp.int8 else _product_widened
        y = multiply(x, weight.values).astype(jnp.float32) * x_scales * weight.scales
    else:
        y = _product_by_groups(x, x_scales, weight.values) * weight.scales
    return (y if bias is None else y + bias.astype(jnp.float32)).astype(out_dtype)


def _product(x: Array, weight: Array) -> Array:
    """x [T, in] times weight [out, in]; int32 of int8 values, else float32."""
    kind = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
    return jnp.einsum("ti,oi->to", x, weight, preferred_element_type=kind)


def _product_widened(x: Array, weight: Array) -> Array:
    """x and weight of dtypes that have no product of their own on CPUs, where they are widened first."""
    return lax.platform_dependent(x, weight, cpu=_product_in_turn, default=lambda x, w: _product(x, w.astype(x.dtype)))


def _product_in_turn(x: Array, weight: Array) -> Array:
    """Widens the weight (int8 or float8) when its turn has come: its bits are joined with a zero that depends on x.

    Else the compiler does those of all layers at once, ahead of the first, and keeps a copy of the whole model.
    """
    wide = jnp.bfloat16 if x.dtype == jnp.bfloat16 and multiplies_bfloat16() else jnp.float32
    x = x.astype(wide)
    first = lax.bitcast_convert_type(x[0, 0].astype(jnp.float32), jnp.uint32)
    zero = lax.shift_right_logical(lax.shift_right_logical(first, jnp.uint32(31)), jnp.uint32(1)).astype(jnp.uint8)
    bits = lax.bitcast_convert_type(weight, jnp.uint8) | zero
    return _product(x, lax.bitcast_convert_type(bits, weight.dtype).astype(wide))


def _product_by_groups(x: Array, x_scales: Array, weight: Array) -> Array:
    """float32 [T, out]. A loop, as the products of all groups at once are in / group times the output's size."""
    group = x.shape[1] // x_scales.shape[1]

    def add_group(index, y):
        x_group = lax.dynamic_slice_in_dim(x, index * group, group, axis=1)
        weight_group = lax.dynamic_slice_in_dim(weight, index * group, group, axis=1)
        scale = lax.dynamic_slice_in_dim(x_scales, index, 1, axis=1)
        return y + _product(x_group, weight_group).astype(jnp.float32) * scale

    zeros = jnp.zeros((x.shape[0], weight.shape[0]), jnp.float32)
    return lax.fori_loop(0, x_scales.shape[1], add_group, zeros)


def _unpacked(weight: QuantizedWeight, dtype) -> Array:
    """[out, in] of `dtype`. Compilers write it to memory; so they do when the halves are multiplied apart."""
    groups, out = weight.scales.shape
    values = unpack(weight.values, groups, weight.group_size or 1).astype(jnp.float32)  # [out, groups, group]
    zeros = 8.0 if weight.zeros is None else weight.zeros.T[..., None].astype(jnp.float32)
    return ((values - zeros) * weight.scales.T[..., None].astype(jnp.float32)).astype(dtype).reshape(out, -1)
