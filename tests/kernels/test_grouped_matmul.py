"""Grouped matrix products against the plain reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.grouped_matmul import grouped_matmul
from xlaserve_kernels.grouped_matmul.reference import grouped_matmul_reference

BACKENDS = ("xla", "pallas_gpu_interpret")
TOKENS = 40
SIZES = {  # of one shape, so each backend compiles once
    "all alike": (8, 8, 8, 8, 8),
    "empty groups": (0, 13, 0, 27, 0),
    "one group has all": (0, 0, 40, 0, 0),
    "sizes of one": (1, 1, 1, 1, 1),
    "tokens beyond the groups": (3, 0, 17, 1, 2),
    "no token in any group": (0, 0, 0, 0, 0),
    "tiles filled to the last row": (16, 0, 16, 1, 7),
}

_multiply = jax.jit(grouped_matmul, static_argnames="backend")


def assert_close(sizes, num_tokens, inputs, out, backend, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    x, weights = (
        jnp.asarray(rng.standard_normal(shape, np.float32), dtype)
        for shape in ((num_tokens, inputs), (len(sizes), inputs, out))
    )
    y = _multiply(x, weights, np.array(sizes, np.int32), backend=backend)
    expected = grouped_matmul_reference(x, weights, sizes)
    assert y.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SIZES)
def test_group_sizes(name, backend):
    assert_close(SIZES[name], TOKENS, 72, 136, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("sizes", "num_tokens"),
    [((1,), 1), ((0, 1), 1), ((3, 4), 7), ((33,), 33), ((129, 0), 129), ((100, 29), 129), ((5, 250, 0, 2), 260)],
)
def test_any_number_of_tokens(sizes, num_tokens, backend):
    assert_close(sizes, num_tokens, 72, 24, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16(backend):
    assert_close(SIZES["tokens beyond the groups"], TOKENS, 72, 136, backend, jnp.bfloat16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_of_no_group_may_hold_anything(backend):
    x = jnp.ones((5, 64)).at[3:].set(jnp.nan)
    y = _multiply(x, jnp.ones((3, 64, 8)), np.array([2, 0, 1], np.int32), backend=backend)
    np.testing.assert_array_equal(y[:, 0], [64, 64, 64, 0, 0])


def test_the_kernel_does_not_read_weights_of_empty_groups():
    weights = jnp.ones((3, 64, 8)).at[1].set(jnp.nan)
    y = _multiply(jnp.ones((5, 64)), weights, np.array([2, 0, 3], np.int32), backend="pallas_gpu_interpret")
    np.testing.assert_array_equal(y, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(x=np.ones(8, np.float32)), r"x has shape \[8\]: must be \[T, in\]"),
        (dict(x=np.ones((4, 8), np.float16)), "x has dtype float16: must be float32 or bfloat16"),
        (dict(weights=np.ones((2, 7, 3), np.float32)), r"weights has shape \[2, 7, 3\]: must be \[E, 8, out\]"),
        (dict(weights=np.ones((2, 8, 3), np.float16)), "weights has dtype float16: must be float32"),
        (dict(group_sizes=np.ones(3, np.int32)), r"group_sizes has shape \[3\]: must be \[2\]"),
        (dict(group_sizes=np.ones(2, np.float32)), "group_sizes has dtype float32: must be int32"),
        (dict(backend="cuda"), "backend 'cuda': must be one of xla, pallas_gpu"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(change, message):
    good = dict(
        x=np.ones((4, 8), np.float32),
        weights=np.ones((2, 8, 3), np.float32),
        group_sizes=np.ones(2, np.int32),
        backend="xla",
    )
    with pytest.raises(ValueError, match=message):
        grouped_matmul(**(good | change))
