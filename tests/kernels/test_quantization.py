"""Quantisation: its error, its scales, and the vectors that are easily got wrong."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from xlaserve_kernels.host_quantization import quantize_on_host
from xlaserve_kernels.quantization import LARGEST, quantize, quantize_groups, widen

MAGNITUDES = 10.0 ** np.linspace(-38, 37, 300)


def vectors(dtype=np.float32) -> np.ndarray:
    drawn = np.random.default_rng(0).standard_normal((len(MAGNITUDES), 64))
    return (drawn * MAGNITUDES[:, None]).astype(dtype)


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("x_dtype", [np.float32, ml_dtypes.bfloat16])
def test_an_error_is_at_most_half_a_step(x_dtype, dtype):
    x = vectors(x_dtype)
    values, scales = (np.asarray(part, np.float64) for part in jax.jit(quantize, static_argnums=1)(x, dtype))
    x = np.asarray(x, np.float64)
    if dtype == "int8":
        step = np.ones_like(values)
    else:  # three bits of mantissa down to 2**-6, then subnormals
        step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(x / scales[:, None]), 2.0**-6))) - 3)
    assert (np.abs(x - values * scales[:, None]) <= step * scales[:, None] * (0.5 + 1e-5)).all()


@pytest.mark.parametrize("dtype", LARGEST)
def test_scales_are_the_least_of_bfloat16_that_saturate_nothing(dtype):
    x = vectors()[45:]  # the smallest have the smallest scale there is
    values, scales = quantize(x, dtype)
    np.testing.assert_array_equal(scales, np.asarray(scales).astype(ml_dtypes.bfloat16).astype(np.float32))
    exact = np.abs(x).max(axis=1).astype(np.float64) / LARGEST[dtype]
    assert (scales >= exact * (1 - 1e-7)).all()
    assert (scales <= exact * (1 + 2**-7)).all()
    assert np.abs(np.asarray(values, np.float32)).max() <= LARGEST[dtype]


@pytest.mark.parametrize("dtype", LARGEST)
def test_zeros_stay_zeros_and_what_is_not_finite_shows(dtype):
    x = jnp.array([[0.0, 0.0], [1e-44, 0.0], [jnp.nan, 1.0], [jnp.inf, 1.0]])
    values, scales = quantize(x, dtype)
    assert (np.asarray(values[:2], np.float32) == 0).all()
    assert (scales[:2] > 0).all()
    assert np.isfinite(scales[:2]).all()
    assert not np.isfinite(scales[2:]).any()


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("x_dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_host_gives_the_same_bits(x_dtype, dtype):
    """Also over several blocks of rows, the last one smaller; rows of zeros, and what is not finite."""
    with np.errstate(over="ignore"):
        x = np.concatenate([vectors(x_dtype)] * 40)  # more values than a block has
    x[3], x[4, 0], x[5, 0] = 0, np.nan, np.inf
    values, scales = quantize_on_host(x, np.dtype(dtype))
    expected, expected_scales = jax.jit(quantize, static_argnums=1)(x, dtype)
    np.testing.assert_array_equal(scales, expected_scales)
    finite = np.isfinite(scales)
    assert not finite[4:6].any()
    bits, expected = values.view(np.uint8), np.asarray(expected).view(np.uint8)
    np.testing.assert_array_equal(bits[finite], expected[finite])


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("group", [None, 32, 1])
def test_groups_have_scales_of_their_own(dtype, group):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 96), np.float32))
    values, scales = quantize_groups(x, dtype, group)
    assert scales.shape == (5, 96 // (group or 96))
    for index in range(scales.shape[1]):
        part = slice(index * (group or 96), (index + 1) * (group or 96))
        expected, scale = quantize(x[:, part], dtype)
        np.testing.assert_array_equal(values[:, part], expected)
        np.testing.assert_array_equal(scales[:, index], scale)


def test_a_group_that_does_not_divide_the_vector_is_named():
    with pytest.raises(ValueError, match=r"group_size 3: must divide the last axis of x, \[2, 8\]"):
        quantize_groups(jnp.ones((2, 8)), jnp.int8, 3)


def test_ties_go_to_even():
    values, scales = quantize(jnp.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5]), "int8")
    assert scales == 1
    np.testing.assert_array_equal(values, [127, 0, 2, 2, 0, -2])


@pytest.mark.parametrize("dtype", ["int4", "float8_e5m2", "float32"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=f"dtype {dtype}: can quantise to int8, float8_e4m3fn"):
        quantize(jnp.ones(4), getattr(jnp, dtype))


def test_every_float8_from_its_bits():
    bits = np.arange(256, dtype=np.uint8)
    expected = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = np.asarray(widen(jnp.asarray(bits), "float32"))
    assert (found[np.isnan(expected)] == [480, -480]).all()
    np.testing.assert_array_equal(found[~np.isnan(expected)], expected[~np.isnan(expected)])
