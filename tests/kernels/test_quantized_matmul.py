"""Quantised matrix products against the plain reference, at ragged edges, for every mode and backend."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.quantization import quantize_groups
from xlaserve_kernels.quantized_matmul import (
    MODES,
    QuantizedWeight,
    interleaved,
    quantize_weight,
    quantized_matmul,
    quantized_matmuls,
    wants_interleaved,
)
from xlaserve_kernels.quantized_matmul.reference import dequantize_reference, quantized_matmul_reference

from tests.kernels.conftest import needs_native

BACKENDS = ("xla", "pallas_tpu_interpret", "pallas_gpu_interpret")
WITH_NATIVE = (*BACKENDS, pytest.param("cpu_native", marks=needs_native))  # w8a8: what these tests draw
# (mode, group, inputs): an odd number of groups, and inputs that are no multiple of a tile
VARIANTS = (
    ("w8a8", None, 576), ("w8a8", 32, 160), ("w8a8", 64, 576), ("w8a16", None, 576),
    ("w4a16", 32, 160), ("w4a16", 128, 384), ("fp8_w8a8", None, 160), ("fp8_w8a16", None, 576),
)  # fmt: skip

_quantize = jax.jit(quantize_groups, static_argnames=("dtype", "group_size"))  # one compilation instead of ten
_quantize_weight = jax.jit(quantize_weight, static_argnames=("mode", "group_size"))
_multiply = jax.jit(quantized_matmul, static_argnames=("backend", "out_dtype"))


def drawn(mode, group, inputs, out, num_tokens, seed=0) -> tuple[jax.Array, QuantizedWeight, jax.Array]:
    """(x, weight, bias), one row of x and one output of the weight all zeros."""
    rng = np.random.default_rng(seed)
    x, weight, bias = (rng.standard_normal(shape, np.float32) for shape in ((num_tokens, inputs), (out, inputs), out))
    x[num_tokens // 2], weight[out // 2] = 0, 0
    return jnp.asarray(x), _quantize_weight(weight, mode, group), jnp.asarray(bias)


def assert_close(x, weight, bias, backend, out_dtype=jnp.float32):
    """Activations are quantised here: a half rounded the other way is a whole step, which is another's test."""
    activations = MODES[weight.mode].activations
    x, scales = (x, None) if activations is None else _quantize(x, activations, weight.group_size)
    pair = x if scales is None else (x, scales)
    expected = quantized_matmul_reference(x, scales, weight, bias)
    if wants_interleaved(backend, weight.mode):
        weight = dataclasses.replace(weight, values=jnp.asarray(interleaved(np.asarray(weight.values))))
    y = _multiply(pair, weight, bias, backend=backend, out_dtype=out_dtype)
    assert y.dtype == out_dtype
    tolerance = 1e-5 if x.dtype != jnp.bfloat16 and out_dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("mode", "group", "inputs"), VARIANTS)
def test_every_mode(mode, group, inputs, backend):
    assert_close(*drawn(mode, group, inputs, 136, 9), backend)


@needs_native
@pytest.mark.parametrize("out_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("group", "inputs", "out"),
    [(None, 576, 136), (None, 70, 7), (32, 160, 9), (32, 32, 1), (64, 576, 136), (128, 1536, 576), (128, 128, 6)],
)
@pytest.mark.parametrize("num_tokens", [1, 2, 9, 17, 40])
def test_native_code(group, inputs, out, num_tokens, out_dtype):
    for mode in ("w8a8",) if group else ("w8a8", "w8a16"):
        x, weight, bias = drawn(mode, group, inputs, out, num_tokens)
        assert_close(x, weight, bias, "cpu_native", out_dtype)
        assert_close(x, weight, None, "cpu_native", out_dtype)


@needs_native
@pytest.mark.parametrize(("mode", "group"), [("w8a8", 32), ("w8a8", None), ("w8a16", None)])
@pytest.mark.parametrize("num_tokens", [1, 5, 40])
def test_several_weights_are_one_call_of_native_code(mode, group, num_tokens):
    outputs = (130, 7, 48)
    x, weights, biases = zip(*(drawn(mode, group, 160, out, num_tokens) for out in outputs), strict=True)
    if wants_interleaved("cpu_native", mode):
        weights = [dataclasses.replace(w, values=jnp.asarray(interleaved(np.asarray(w.values)))) for w in weights]
    biases = (biases[0], None, biases[2])
    at_once = jax.jit(functools.partial(quantized_matmuls, backend="cpu_native")).lower(x[0], weights, biases)
    assert len(re.findall(r"custom_call @xlaserve_(int8_)?matmul", at_once.as_text())) == 1
    for y, weight, bias in zip(at_once.compile()(x[0], weights, biases), weights, biases, strict=True):
        np.testing.assert_array_equal(y, _multiply(x[0], weight, bias, backend="cpu_native"))


def test_weights_that_share_activations_are_of_one_mode():
    x, weight, _ = drawn("w8a8", 32, 64, 8, 1)
    others = [_quantize_weight(jnp.ones((8, 64)), mode, group) for mode, group in (("w8a8", 64), ("w8a16", None))]
    for other in others:
        with pytest.raises(ValueError, match="weights: must be of one mode and group size, as they share x"):
            quantized_matmuls(x, [weight, other], [None, None], backend="xla")


@needs_native
def test_native_code_names_the_modes_it_has_not():
    x, weight, _ = drawn("w4a16", 32, 64, 8, 1)
    with pytest.raises(ValueError, match="mode w4a16: cpu_native multiplies w8a8 and w8a16 only; xla takes it"):
        quantized_matmul(x, weight, backend="cpu_native")


@pytest.mark.parametrize("backend", WITH_NATIVE)
@pytest.mark.parametrize("num_tokens", [1, 7, 8, 33, 129])
def test_any_number_of_tokens(num_tokens, backend):
    assert_close(*drawn("w8a8", 64, 192, 72, num_tokens), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["w8a16", "w4a16", "fp8_w8a16", "fp8_w8a8"])
def test_bfloat16_without_bias(mode, backend):
    x, weight, _ = drawn(mode, 32 if mode == "w4a16" else None, 160, 72, 17)
    assert_close(x.astype(jnp.bfloat16), weight, None, backend, jnp.bfloat16)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize(
    ("mode", "group", "inputs", "out", "num_tokens"),
    [
        ("w8a8", 128, 2304, 520, 2), ("w8a16", None, 64, 1032, 520),
    ],
)  # fmt: skip
def test_several_tiles(mode, group, inputs, out, num_tokens, backend):
    """Inputs, outputs and tokens beyond one tile, the last one ragged."""
    assert_close(*drawn(mode, group, inputs, out, num_tokens), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scales_in_bfloat16_and_no_zero_points(backend):
    x, weight, bias = drawn("w4a16", 64, 192, 72, 9)
    weight = dataclasses.replace(weight, scales=weight.scales.astype(jnp.bfloat16), zeros=None)
    assert_close(x, weight, bias, backend)


@pytest.mark.parametrize("mode", ["w8a8", "fp8_w8a8"])
def test_activations_are_quantised_if_they_are_not_yet(mode):
    x, weight, _ = drawn(mode, None, 160, 72, 9)
    pair = _quantize(x, MODES[mode].activations)
    expected = _multiply(pair, weight, backend="xla", out_dtype=jnp.float32)
    np.testing.assert_array_equal(_multiply(x, weight, backend="xla"), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_8_bit_float(backend):
    """The GPU kernel widens them by their bits, those below the normal ones too."""
    bits = np.array([b for b in range(256) if b & 0x7F != 0x7F], np.uint8)  # all but NaN
    numbers = jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.float8_e4m3fn)
    weight = QuantizedWeight(numbers[:, None], jnp.ones(len(bits)), None, "fp8_w8a16", None)
    y = _multiply(jnp.ones((1, 1)), weight, backend=backend)
    np.testing.assert_array_equal(y[0], numbers.astype(jnp.float32))


@pytest.mark.parametrize("backend", WITH_NATIVE)
def test_sums_of_the_largest_integers_are_exact(backend):
    x, w = jnp.full((1, 576), 127, jnp.int8), jnp.full((8, 576), -127, jnp.int8)
    weight = QuantizedWeight(w, jnp.ones(8), None, "w8a8", None)
    y = _multiply((x, jnp.ones((1, 1))), weight, backend=backend, out_dtype=jnp.float32)
    np.testing.assert_array_equal(y, -127 * 127 * 576)


@pytest.mark.parametrize("mode", MODES)
def test_a_quantised_weight_is_near_the_weight(mode):
    weight = np.random.default_rng(0).standard_normal((24, 128)).astype(np.float32)
    stands_for = dequantize_reference(_quantize_weight(weight, mode, 32 if mode == "w4a16" else None))
    step = {"w4a16": 5 / 15, "w8a8": 4 / 127, "w8a16": 4 / 127}.get(mode, 4 / 16)
    assert np.abs(stands_for - weight).max() < step


def test_a_weight_is_a_pytree_whose_mode_is_static():
    weight = drawn("w4a16", 64, 192, 72, 1)[1]
    leaves, tree = jax.tree.flatten(weight)
    assert [leaf.shape for leaf in leaves] == [(72, 128), (3, 72), (3, 72)]
    assert jax.tree.unflatten(tree, leaves).mode == "w4a16"
    assert (weight.out_features, weight.in_features) == (72, 192)


def ones(*shape, dtype=np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("mode", "group", "fields", "message"),
    [
        ("w8a8", None, dict(scales=ones(7)), r"weight.scales has shape \[7\]: must be \[8\]"),
        ("w8a8", None, dict(scales=ones(8, dtype=np.float16)), "weight.scales has dtype float16: must be float32"),
        ("w8a8", None, dict(values=ones(8, 64)), "weight.values has dtype float32: must be int8"),
        ("w8a8", None, dict(zeros=ones(8)), "weight.zeros: must be None with w8a8"),
        ("w8a8", None, dict(group_size=48), "group_size 48: with w8a8 it must be one of None, 32, 64, 128"),
        ("w8a8", None, dict(group_size=128), "group_size 128: must divide the 64 inputs"),
        ("w8a8", None, dict(mode="w2"), "mode 'w2': must be one of w8a8, w8a16, w4a16"),
        ("w8a16", None, dict(group_size=32), "group_size 32: with w8a16 it must be one of None"),
        ("w4a16", 32, dict(group_size=64), r"weight.values has shape \[8, 32\]: must be \[out, 64\] with 2 groups"),
        (
            "w8a16",
            None,
            dict(values=ones(1, 64, 16, dtype=np.int8)),
            r"weight\.values: must not be interleaved for xla",
        ),
        (
            "w8a16",
            None,
            dict(values=ones(2, 64, 16, dtype=np.int8)),
            r"weight.values has shape .*: must be \[1, in, 16\]",
        ),
        ("w4a16", 32, dict(zeros=ones(1, 8)), r"weight.zeros has shape \[1, 8\]: must be \[2, 8\]"),
    ],
)
def test_a_weight_that_does_not_fit_is_named(mode, group, fields, message):
    weight = dataclasses.replace(drawn(mode, group, 64, 8, 1)[1], **fields)
    with pytest.raises(ValueError, match=message):
        quantized_matmul(jnp.ones((1, 64)), weight, backend="xla")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=ones(1, 65)), r"x has shape \[1, 65\]: must be \[T, 64\]"),
        (dict(x=ones(1, 64, dtype=np.float16)), "x has dtype float16: must be float32 or bfloat16"),
        (dict(x=(ones(1, 64, dtype=np.int8), ones(1, 2))), r"x's scales has shape \[1, 2\]: must be \[1, 1\]"),
        (dict(x=(ones(1, 64), ones(1, 1))), "x has dtype float32: must be int8"),
        (dict(x=(ones(1, 64, dtype=np.int8), ones(1, 1))), "out_dtype: must be given"),
        (dict(out_dtype="float16"), "out_dtype float16: must be float32 or bfloat16"),
        (dict(bias=ones(9)), r"bias has shape \[9\]: must be \[8\]"),
        (dict(backend="cuda"), "backend 'cuda': must be one of xla, cpu_native, pallas_tpu"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(arguments, message):
    good = dict(x=jnp.ones((1, 64)), weight=drawn("w8a8", None, 64, 8, 1)[1], backend="xla")
    with pytest.raises(ValueError, match=message):
        quantized_matmul(**(good | arguments))


def test_quantised_activations_where_the_mode_has_none():
    with pytest.raises(ValueError, match="w8a16 takes activations that are not quantised"):
        quantized_matmul((ones(1, 64, dtype=np.int8), ones(1, 1)), drawn("w8a16", None, 64, 8, 1)[1], backend="xla")


@needs_native
def test_interleaved_values_stand_for_the_same_weight():
    weight = drawn("w8a16", None, 64, 19, 1)[1]
    other = dataclasses.replace(weight, values=interleaved(np.asarray(weight.values)))
    assert (other.out_features, other.in_features) == (19, 64)
    np.testing.assert_array_equal(dequantize_reference(other), dequantize_reference(weight))
    with pytest.raises(ValueError, match=r"weight\.values: must be interleaved for cpu_native"):
        quantized_matmul(jnp.ones((1, 64)), weight, backend="cpu_native")


@needs_native
def test_native_products_of_a_token_do_not_depend_on_the_others():
    x, weight, _ = drawn("w8a16", None, 300, 200, 40)
    weight = dataclasses.replace(weight, values=jnp.asarray(interleaved(np.asarray(weight.values))))
    alone = [_multiply(x[:count], weight, backend="cpu_native") for count in (1, 2, 3, 5, 16, 17, 40)]
    for product in alone:
        np.testing.assert_array_equal(product, alone[-1][: len(product)])
