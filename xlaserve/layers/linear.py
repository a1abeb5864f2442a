"""Matrix products with weights stored as checkpoints have them, [out, in]."""

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array, lax
from xlaserve_kernels import native
from xlaserve_kernels.cpu_features import multiplies_bfloat16

from xlaserve.layers.params import ArraySpec, Axis
from xlaserve.layers.quantized import QuantizedArray, quantized_logits, quantized_product, quantized_rows

# From this many rows on, XLA's float32 product is the fastest, bfloat16 weights widened for it where they must be: 8%
# slower than float32 weights at 256 rows, where bfloat16 products take 1.5 times as long. Of fewer, native code takes
# 0.5 to 0.8 of XLA's time; at 64 as long.
_ROWS_FOR_XLA = 40


@flax.struct.dataclass
class Linear:
    weight: Array | QuantizedArray  # [out, in]
    bias: Array | None = None  # [out]


@flax.struct.dataclass
class Embedding:
    weight: Array | QuantizedArray  # [V, D]


def linear_spec(out_dim: int, in_dim: int, out_axis: Axis, in_axis: Axis, *, bias: bool = False) -> Linear:
    """Specs of a Linear; the axes name the dimensions for sharding."""
    return Linear(
        weight=ArraySpec((out_dim, in_dim), (out_axis, in_axis)),  # pyright: ignore[reportArgumentType]
        bias=ArraySpec((out_dim,), (out_axis,), init="zeros") if bias else None,  # pyright: ignore[reportArgumentType]
    )


def embedding_spec(vocab_size: int, hidden_size: int) -> Embedding:
    return Embedding(weight=ArraySpec((vocab_size, hidden_size), ("vocab", "embed")))  # pyright: ignore[reportArgumentType]


def linear(x: Array, p: Linear) -> Array:
    """x [T, in] -> [T, out] in x's dtype; accumulated in float32, or as the quantised weight says."""
    if isinstance(p.weight, QuantizedArray):
        return quantized_product(x, p.weight, p.bias)
    y = lax.platform_dependent(x, p.weight, cpu=_rounded, default=_rounded_within)
    return y if p.bias is None else y + p.bias


def _rounded(x: Array, weight: Array) -> Array:
    return project(x, weight).astype(x.dtype)


def _rounded_within(x: Array, weight: Array) -> Array:
    """Rounded by the product itself: what a GPU's library writes as float32 is not converted by it."""
    return jnp.einsum("ti,oi->to", x, weight, preferred_element_type=x.dtype)


def project(x: Array, weight: Array | QuantizedArray) -> Array:
    """x [T, in] times weight [out, in] -> float32 [T, out]. Of a weight that devices share, the part that is here."""
    if isinstance(weight, QuantizedArray):
        return quantized_logits(x, weight)
    if x.dtype not in (jnp.float32, jnp.bfloat16) or (x.dtype == jnp.bfloat16 and multiplies_bfloat16()):
        return _product(x, weight)
    if x.shape[0] < _ROWS_FOR_XLA:
        on_cpu = _native_product if _has_native_code() else _product
    else:
        on_cpu = _product_in_float32 if x.dtype == jnp.bfloat16 else _product
    return lax.platform_dependent(x, weight, cpu=on_cpu, default=_product)


def _has_native_code() -> bool:
    """Which several devices cannot share: XLA does not know how it could be cut."""
    return native.loaded() is not None and jax.device_count() == 1


def _native_product(x: Array, weight: Array) -> Array:
    return native.call("matmul", jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32))(x, weight)


def _product(x: Array, weight: Array) -> Array:
    return jnp.einsum("ti,oi->to", x, weight, preferred_element_type=jnp.float32)


def _product_in_float32(x: Array, weight: Array) -> Array:
    """Widens the weight first. By its bits and with a zero that depends on x: a mere conversion depends on nothing, so
    the compiler does those of all layers at once, ahead of the first, and keeps a float32 copy of the whole model."""
    first = lax.bitcast_convert_type(x[0, 0].astype(jnp.float32), jnp.uint32)
    zero = lax.shift_right_logical(lax.shift_right_logical(first, jnp.uint32(31)), jnp.uint32(1))
    bits = lax.bitcast_convert_type(weight, jnp.uint16).astype(jnp.uint32)
    widened = lax.bitcast_convert_type((bits << 16) | zero, jnp.float32)
    return _product(x.astype(jnp.float32), widened)


def embed(token_ids: Array, p: Embedding) -> Array:
    """token_ids int32 [T] -> [T, D]. Ids are checked on the host; a gather would clamp them silently."""
    if isinstance(p.weight, QuantizedArray):
        return quantized_rows(p.weight, token_ids)
    return jnp.take(p.weight, token_ids, axis=0, mode="clip")
