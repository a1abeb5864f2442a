"""Quantisation of activations."""

import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.quantization import LARGEST, quantize

DTYPES = tuple(LARGEST)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [None, 32, 1])
def test_values_times_scales_are_near(dtype, group):
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    values, scales = quantize(jnp.asarray(x), dtype, group)
    assert values.dtype == dtype
    assert scales.shape == (5, 96 // (group or 96))
    steps = np.repeat(np.asarray(scales), group or 96, axis=1)
    error = np.abs(np.asarray(values, np.float32) * steps - x)
    assert (error <= (0.5001 * steps if dtype == np.int8 else np.maximum(np.abs(x) / 16, steps / 512) * 1.0001)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scales_are_the_next_bfloat16_above(dtype):
    x = np.abs(np.random.default_rng(0).standard_normal((200, 1))).astype(np.float32)
    _, scales = quantize(jnp.asarray(x), dtype)
    np.testing.assert_array_equal(scales, scales.astype(jnp.bfloat16).astype(jnp.float32))
    exact = x.astype(np.float64) / LARGEST[dtype]
    assert (scales >= exact * (1 - 2**-23)).all()
    assert (scales <= exact * (1 + 2**-7)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [0.0, 1e-38, 3.3e38])
def test_extreme_numbers(dtype, number):
    values, scales = quantize(jnp.full((2, 8), number, jnp.float32), dtype)
    np.testing.assert_allclose(values.astype(jnp.float32) * scales, number, rtol=0.01, atol=1e-30)


def test_halves_go_to_the_even_neighbour():
    values, scales = quantize(jnp.array([[0.5, 1.5, -0.5, -1.5, 2.5, 127.0]]), jnp.int8)
    assert scales[0, 0] == 1
    np.testing.assert_array_equal(values[0], [0, 2, 0, -2, 2, 127])


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="dtype int4: must be one of int8, float8_e4m3fn"):
        quantize(jnp.ones((2, 8)), jnp.int4)
    with pytest.raises(ValueError, match=r"group_size 3: must divide the last axis of x, \[2, 8\]"):
        quantize(jnp.ones((2, 8)), jnp.int8, 3)
