"""Matrix products, at every number of rows where another way of computing begins."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels import native

from xlaserve.layers import linear

PARTS = [(130, True), (6, False), (49, True)]  # outputs, and whether there is a bias


@pytest.fixture(params=[False, True], ids=["emulated", "native"])
def native_bfloat16(request, monkeypatch):
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: request.param)
    return request.param


@pytest.fixture(params=[False, True], ids=["xla", "native code"])
def native_code(request, monkeypatch):
    if request.param:
        with contextlib.suppress(native.NativeUnavailable):
            native.load(native.default_folder())
        if native.loaded() is None:
            pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(native, "is_usable", lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 96, 40), (2, 99, 6), (3, 7, 1), (4, 1100, 9), (130, 100, 41)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_code_is_exact_to_float32(rows, inputs, outputs, dtype, native_code, monkeypatch):
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: False)
    rng = np.random.default_rng(rows)
    x, weight = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((rows, inputs), (outputs, inputs)))
    x = x.at[rows // 2].set(0)  # native code passes over it, unless it is the only one
    lowered = jax.jit(lambda x, weight: linear.project(x, weight)).lower(x, weight)
    assert ("xlaserve_matmul" in lowered.as_text()) == native_code
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(lowered.compile()(x, weight), expected, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_products_are_one_call_of_native_code(rows, dtype, native_code, monkeypatch):
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: False)
    rng = np.random.default_rng(rows)

    def drawn(*shape):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    x = drawn(rows, 96).at[rows // 2].set(0)
    parts = tuple(linear.Linear(drawn(out, 96), drawn(out) if biased else None) for out, biased in PARTS)
    lowered = jax.jit(lambda x, parts: linear.linears(x, parts)).lower(x, parts)
    assert len(re.findall("custom_call @xlaserve_matmul", lowered.as_text())) == native_code
    for y, part in zip(lowered.compile()(x, parts), parts, strict=True):
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, jax.jit(lambda x, part: linear.linear(x, part))(x, part))
        expected = np.asarray(x, np.float64) @ np.asarray(part.weight, np.float64).T
        expected += 0 if part.bias is None else np.asarray(part.bias, np.float64)
        np.testing.assert_allclose(np.asarray(y, np.float64), expected, atol=2e-4 if dtype == "float32" else 0.3)


@pytest.mark.parametrize("rows", [1, 4, 39, 40, 41, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_are_exact_to_float32(rows, dtype, native_bfloat16):
    rng = np.random.default_rng(rows)
    x, weight = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((rows, 96), (40, 96)))
    product = jax.jit(lambda x, weight: linear.project(x, weight))(x, weight)
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, expected, atol=1e-4)


@pytest.mark.parametrize(("platform", "widened"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_weights_are_widened_on_processors_without_bfloat16_only(platform, widened, native_bfloat16, monkeypatch):
    monkeypatch.setattr(native, "is_usable", lambda: False)
    x, weight = jnp.ones((40, 96), jnp.bfloat16), jnp.ones((24, 96), jnp.bfloat16)
    lowered = jax.jit(lambda x, weight: linear.project(x, weight)).trace(x, weight)
    text = lowered.lower(lowering_platforms=(platform,)).as_text()
    assert ("tensor<24x96xf32>" in text) == (widened and not native_bfloat16)
