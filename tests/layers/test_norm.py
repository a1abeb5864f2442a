"""RMSNorm against float64, in XLA operations and in native code."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels import native

from xlaserve.layers.norm import RMSNorm, rms_norm, rms_norm_unit_offset

EPS = 1e-5


@pytest.fixture(params=[False, True], ids=["xla", "native code"])
def native_code(request, monkeypatch):
    if request.param:
        with contextlib.suppress(native.NativeUnavailable):
            native.load(native.default_folder())
        if native.loaded() is None:
            pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(native, "is_usable", lambda: request.param)
    return request.param


def drawn(shape, dtype) -> tuple[jax.Array, RMSNorm]:
    """One row is zeros, and one so small that eps matters."""
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(size).astype(np.float32) for size in (shape, shape[-1]))
    x[shape[0] // 2], x[-1] = 0, x[-1] * 1e-3
    return jnp.asarray(x, dtype), RMSNorm(jnp.asarray(weight, dtype))


def exact(x, weight) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("norm", [rms_norm, rms_norm_unit_offset])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 576), (3, 1), (2, 15), (5, 4, 64), (130, 257), (2, 20000)])
def test_against_float64(shape, dtype, norm, native_code):
    x, p = drawn(shape, dtype)
    lowered = jax.jit(lambda x, p: norm(x, p, EPS)).lower(x, p)
    assert ("xlaserve_rms_norm" in lowered.as_text()) == native_code
    y = lowered.compile()(x, p)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    expected = exact(x, np.asarray(p.weight, np.float64) + (norm is rms_norm_unit_offset))
    tolerance = {"float32": 1e-6, "bfloat16": 2**-8 if norm is rms_norm_unit_offset else 2**-7}[dtype]
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=tolerance, atol=1e-6)


def test_rounding_is_that_of_xla(monkeypatch):
    """Where transformers rounds, in Llama's order twice: what differs is a sum's order, so one bit at most, rarely."""
    with contextlib.suppress(native.NativeUnavailable):
        native.load(native.default_folder())
    if native.loaded() is None:
        pytest.skip("there is no C++ compiler")
    x, p = drawn((64, 576), "bfloat16")
    found = {}
    for usable in (False, True):
        monkeypatch.setattr(native, "is_usable", lambda usable=usable: usable)
        found[usable] = np.asarray(jax.jit(lambda x, p: rms_norm(x, p, EPS))(x, p), np.float32)
    assert (found[False] != found[True]).mean() < 0.01


def test_other_dtypes_are_left_to_xla(native_code):
    """A norm's weight that a checkpoint keeps in float32 beside activations of bfloat16, and float16."""
    x, p = drawn((2, 64), "float32")
    for x_dtype, weight_dtype in (("bfloat16", "float32"), ("float16", "float16")):
        some, weight = x.astype(x_dtype), p.weight.astype(weight_dtype)
        lowered = jax.jit(lambda x, p: rms_norm(x, p, EPS)).lower(some, RMSNorm(weight))
        assert "xlaserve_rms_norm" not in lowered.as_text()
        expected = exact(some, np.asarray(weight, np.float64))
        np.testing.assert_allclose(
            np.asarray(lowered.compile()(some, RMSNorm(weight)), np.float64), expected, rtol=1e-2
        )
