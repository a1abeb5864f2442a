"""Residual and RMSNorm against the plain reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.fused_norm import add_rms_norm
from xlaserve_kernels.fused_norm.reference import add_rms_norm_reference

BACKENDS = ("xla", "pallas_gpu_interpret")
EPS = 1e-6

_norm = jax.jit(add_rms_norm, static_argnames=("eps", "quantize_group", "backend"))


def drawn(num_tokens, hidden, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = ((num_tokens, hidden), (num_tokens, hidden), (hidden,))
    x, residual, weight = (rng.standard_normal(shape, np.float32) for shape in shapes)
    x[num_tokens // 2] = residual[num_tokens // 2] = 0
    return tuple(jnp.asarray(array, dtype) for array in (x, residual, weight))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 64), (7, 576), (9, 576)])
def test_against_the_reference(num_tokens, hidden, dtype, backend):
    arguments = drawn(num_tokens, hidden, dtype)
    normed, total = _norm(*arguments, EPS, backend=backend)
    expected, expected_total = add_rms_norm_reference(*arguments, EPS)
    assert normed.dtype == total.dtype == dtype
    np.testing.assert_array_equal(np.asarray(total, np.float64), expected_total)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(
        np.asarray(normed, np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max()
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [32, 64, 192, 576])
def test_quantised(group, backend):
    arguments = drawn(8, 576)
    (values, scales), _ = _norm(*arguments, EPS, group, backend=backend)
    assert (values.dtype, scales.shape) == (np.int8, (8, 576 // group))
    expected, _ = add_rms_norm_reference(*arguments, EPS)
    steps = np.repeat(np.asarray(scales, np.float64), group, axis=1)
    assert (np.abs(np.asarray(values) * steps - expected) <= 0.501 * steps).all()
    assert (np.abs(np.asarray(values)).reshape(8, -1, group).max(-1)[np.arange(8) != 4] >= 126).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(x=np.ones(8, np.float32)), r"x is float32\[8\]: must be \[T, D\]"),
        (dict(residual=np.ones((3, 8), np.float32)), r"residual is float32\[3, 8\]: must be float32\[4, 8\]"),
        (dict(weight=np.ones(7, np.float32)), r"weight has shape \[7\]: must be \[8\]"),
        (dict(quantize_group=3), "quantize_group 3: must divide 8"),
        (dict(backend="pallas_tpu"), "backend 'pallas_tpu': must be one of xla, pallas_gpu"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(change, message):
    rows = np.ones((4, 8), np.float32)
    good = dict(x=rows, residual=rows, weight=rows[0], eps=EPS, backend="xla")
    with pytest.raises(ValueError, match=message):
        add_rms_norm(**(good | change))
