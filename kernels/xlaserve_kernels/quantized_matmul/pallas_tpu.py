"""The quantised matrix product for TPUs in Pallas (Mosaic).

Grid (tokens, outputs, inputs), inputs innermost: a program adds one block of the contraction to a float32 accumulator
in VMEM, the last one applies the scales and the bias. Blocks divide the inputs, or take all of them; blocks of tokens
and outputs may reach beyond the edge, as what is computed there is not stored. A batch of decodes keeps all of its
activations in VMEM: then every array is read once.

Letters: T tokens, bt, bo, bk block of tokens, outputs, inputs.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlaserve_kernels.products import dot_transposed
from xlaserve_kernels.quantized_matmul.weight import MODES, QuantizedWeight

_LANES = 128
_RESIDENT_BYTES = 2**21  # of activations that stay in VMEM, which holds them twice


@dataclass(frozen=True)
class _Sizes:
    tokens: int  # bt
    outputs: int  # bo
    inputs: int  # bk
    resident: bool  # the activations' block holds all inputs
    group: int | None  # inputs that share a scale, within a block; None: the whole block does
    packed: bool


def quantized_matmul_pallas_tpu(
    x: Array, x_scales: Array | None, weight: QuantizedWeight, bias: Array | None, out_dtype, *, interpret: bool = False
) -> Array:
    """See api.py; x holds quantised values where x_scales is given. `interpret` runs it on any platform, for tests."""
    num_tokens, out = x.shape[0], weight.out_features
    sizes = choose_sizes(num_tokens, out, weight.in_features, x.dtype.itemsize, weight)
    packed, steps = sizes.packed, weight.in_features // sizes.inputs
    if packed and weight.scales.shape[0] % 2:  # the neighbour of an odd last group
        x = jnp.pad(x, ((0, 0), (0, weight.group_size or 0)))
    width = x.shape[1] if steps == 1 else sizes.inputs
    x_width = x.shape[1] if sizes.resident else width

    def row(array: Array | None) -> tuple[Array | None, pl.BlockSpec | None]:  # of one number per output
        spec = pl.BlockSpec((1, sizes.outputs), lambda t, o, k: (0, o))
        return (None, None) if array is None else (array.reshape(1, out).astype(jnp.float32), spec)

    def by_group(array: Array | None) -> tuple[Array | None, pl.BlockSpec | None]:
        if array is None:
            return None, None
        in_block = array.shape[0] // steps
        spec = pl.BlockSpec((None, in_block, sizes.outputs), lambda t, o, k: (k, 0, o))
        return array.reshape(steps, in_block, out), spec

    scales, scales_spec = by_group(weight.scales) if packed else row(weight.scales)
    zeros, zeros_spec = by_group(weight.zeros)
    bias, bias_spec = row(bias)
    x_scales_spec = (
        None if x_scales is None else pl.BlockSpec((sizes.tokens, x_scales.shape[1]), lambda t, o, k: (t, 0))
    )
    return pl.pallas_call(
        functools.partial(_kernel, sizes=sizes, steps=steps),
        grid=(pl.cdiv(num_tokens, sizes.tokens), pl.cdiv(out, sizes.outputs), steps),
        in_specs=[
            pl.BlockSpec((sizes.tokens, x_width), lambda t, o, k: (t, 0 if sizes.resident else k)),
            x_scales_spec,
            pl.BlockSpec((sizes.outputs, width // 2 if packed else width), lambda t, o, k: (o, k)),
            scales_spec,
            zeros_spec,
            bias_spec,
        ],
        out_specs=pl.BlockSpec((sizes.tokens, sizes.outputs), lambda t, o, k: (t, o)),
        out_shape=jax.ShapeDtypeStruct((num_tokens, out), out_dtype),
        scratch_shapes=[pltpu.VMEM((sizes.tokens, sizes.outputs), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name="quantized_matmul",
    )(x, x_scales, weight.values, scales, zeros, bias)


def choose_sizes(num_tokens: int, out: int, inputs: int, x_bytes: int, weight: QuantizedWeight) -> _Sizes:
    """Blocks whose double buffers fit into 16 MiB with room for the products."""
    packed = MODES[weight.mode].packed
    tokens = min(num_tokens, 512)
    outputs = min(out, 512 if num_tokens <= 128 else 1024)
    quantum = 2 * (weight.group_size or _LANES) if packed else max(weight.group_size or _LANES, _LANES)
    quantum = max(quantum, 2 * _LANES if packed else _LANES)
    fitting = [n for n in range(quantum, min(inputs, 2048) + 1, quantum) if inputs % n == 0]
    block = max(fitting, default=inputs)
    if weight.group_size and block > 2048:  # all inputs, in one piece: their groups' products take room, too
        outputs = min(outputs, 512)
    resident = tokens * inputs * x_bytes <= _RESIDENT_BYTES
    return _Sizes(tokens, outputs, block, resident, weight.group_size, packed)


def _kernel(
    x_ref, x_scales_ref, w_ref, scales_ref, zeros_ref, bias_ref, out_ref, acc_ref, *, sizes: _Sizes, steps: int
):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    if steps > 1 and sizes.resident:
        start = pl.multiple_of(k * sizes.inputs, _LANES)
        x_ref = x_ref.at[:, pl.ds(start, sizes.inputs)]
    if sizes.packed:
        _add_packed(x_ref, w_ref, scales_ref, zeros_ref, acc_ref, sizes.group or 1)
    elif x_scales_ref is not None and sizes.group is not None:
        _add_groups(x_ref, x_scales_ref, w_ref, acc_ref, k * (sizes.inputs // sizes.group), sizes.group)
    else:
        acc_ref[...] += _dot(x_ref[...], w_ref[...]).astype(jnp.float32)

    @pl.when(k == steps - 1)
    def _():
        y = acc_ref[...]
        if not sizes.packed:
            y *= scales_ref[...]
        if x_scales_ref is not None and sizes.group is None:
            y *= x_scales_ref[...]
        if bias_ref is not None:
            y += bias_ref[...]
        out_ref[...] = y.astype(out_ref.dtype)


def _dot(x: Array, w: Array) -> Array:
    if x.dtype == w.dtype == jnp.float8_e4m3fn:
        x = x.astype(jnp.bfloat16)
    return dot_transposed(x, w if x.dtype == w.dtype else w.astype(x.dtype))


def _add_groups(x_ref, x_scales_ref, w_ref, acc_ref, first_group, group: int) -> None:
    """int8 products, exact within a group, times the tokens' scales of that group."""
    all_scales = x_scales_ref[...]  # [bt, in / group]
    column = lax.broadcasted_iota(jnp.int32, all_scales.shape, 1)
    acc = acc_ref[...]
    for i in range(x_ref.shape[1] // group):
        inputs = pl.ds(i * group, group)
        # A lane chosen at run time, by a sum: TPUs cannot index one.
        scale = jnp.sum(jnp.where(column == first_group + i, all_scales, 0.0), axis=1, keepdims=True)
        acc += dot_transposed(x_ref[:, inputs], w_ref[:, inputs]).astype(jnp.float32) * scale
    acc_ref[...] = acc


def _add_packed(x_ref, w_ref, scales_ref, zeros_ref, acc_ref, group: int) -> None:
    """4-bit values are multiplied as they are: x * (values - zeros) = x * values - sum(x) * zeros, by group."""
    scales = scales_ref[...].astype(jnp.float32)  # [groups of the block, bo]
    zeros = None if zeros_ref is None else zeros_ref[...].astype(jnp.float32)
    acc = acc_ref[...]
    for i in range(scales.shape[0]):
        packed = w_ref[:, pl.ds(i // 2 * group, group)].astype(jnp.int32)
        values = lax.shift_right_logical(packed, 4) if i % 2 else packed & 15
        x = x_ref[:, pl.ds(i * group, group)]
        zero = 8.0 if zeros is None else zeros[i : i + 1]
        product = dot_transposed(x, values.astype(jnp.float32).astype(x.dtype))
        acc += (product - jnp.sum(x.astype(jnp.float32), axis=1, keepdims=True) * zero) * scales[i : i + 1]
    acc_ref[...] = acc
