"""Matrix products with weights stored as checkpoints have them, [out, in]."""

from collections.abc import Sequence
from functools import partial

import flax.struct
import jax.numpy as jnp
from jax import Array, lax
from xlaserve_kernels import native
from xlaserve_kernels.cpu_features import multiplies_bfloat16

from xlaserve.layers.params import ArraySpec, Axis
from xlaserve.layers.quantized import QuantizedArray, quantized_logits, quantized_products, quantized_rows


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
    return linears(x, (p,))[0]


def linears(x: Array, parts: Sequence[Linear]) -> list[Array]:
    """`linear` of the same x with each. In native code at once: a call takes as long as a token's small product."""
    biases = [p.bias for p in parts]
    quantized = [p.weight for p in parts if isinstance(p.weight, QuantizedArray)]
    plain = [p.weight for p in parts if not isinstance(p.weight, QuantizedArray)]
    if quantized and plain:  # a checkpoint may have left some as they were
        return [linear(x, p) for p in parts]
    if quantized:
        return quantized_products(x, quantized, biases)
    on_cpu = partial(_products_on_cpu, out_dtype=x.dtype)
    return lax.platform_dependent(x, plain, biases, cpu=on_cpu, default=_rounded_within)


def _rounded_within(x: Array, weights: Sequence[Array], biases: Sequence[Array | None]) -> list[Array]:
    """Rounded by the product itself: what a GPU's library writes as float32 is not converted by it."""
    ys = [jnp.einsum("ti,oi->to", x, weight, preferred_element_type=x.dtype) for weight in weights]
    return [y if bias is None else y + bias for y, bias in zip(ys, biases, strict=True)]


def project(x: Array, weight: Array | QuantizedArray) -> Array:
    """x [T, in] times weight [out, in] -> float32 [T, out]. Of a weight that devices share, the part that is here."""
    if isinstance(weight, QuantizedArray):
        return quantized_logits(x, weight)

    def on_cpu(x: Array, weight: Array) -> Array:
        return _products_on_cpu(x, [weight], [None], out_dtype=jnp.float32)[0]

    return lax.platform_dependent(x, weight, cpu=on_cpu, default=_product)


def _products_on_cpu(x: Array, weights: Sequence[Array], biases: Sequence[Array | None], *, out_dtype) -> list[Array]:
    emulates = x.dtype == jnp.bfloat16 and not multiplies_bfloat16()
    if native.is_usable() and (x.dtype == jnp.float32 or emulates):
        factors = [native.Factor(weight, None, bias) for weight, bias in zip(weights, biases, strict=True)]
        return native.matmuls(x, factors, out_dtype)
    product = _product_in_float32 if emulates else _product
    ys = [product(x, weight).astype(out_dtype) for weight in weights]
    return [y if bias is None else y + bias for y, bias in zip(ys, biases, strict=True)]


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
    """token_ids int32 [T] -> [T, D]; zeros for V, which is padding's. Other ids are checked on the host."""
    if isinstance(p.weight, QuantizedArray):
        return quantized_rows(p.weight, token_ids)
    return jnp.take(p.weight, token_ids, axis=0, mode="fill", fill_value=0)
