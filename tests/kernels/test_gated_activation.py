"""Gated activation against the plain reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.gated_activation import gated_activation
from xlaserve_kernels.gated_activation.activations import ACTIVATIONS
from xlaserve_kernels.gated_activation.reference import gated_activation_reference

BACKENDS = ("xla", "pallas_tpu_interpret", "pallas_gpu_interpret")

_gate = jax.jit(gated_activation, static_argnames=("activation", "quantize_group", "backend"))


def drawn(num_tokens, width, dtype=jnp.float32):
    x = 3 * np.random.default_rng(0).standard_normal((num_tokens, 2 * width), np.float32)
    x[num_tokens // 2] = 0
    return jnp.asarray(x, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("num_tokens", "width", "dtype"), [(9, 192, jnp.float32), (33, 2100, jnp.bfloat16)])
def test_against_the_reference(num_tokens, width, dtype, activation, backend):
    x = drawn(num_tokens, width, dtype)
    y = _gate(x, activation, backend=backend)
    expected = gated_activation_reference(x, activation)
    assert y.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("num_tokens", "width", "group"), [(1, 192, 64), (33, 160, 32), (7, 192, 192)])
def test_quantised(num_tokens, width, group, backend):
    x = drawn(num_tokens, width)
    values, scales = _gate(x, "silu", group, backend=backend)
    assert (values.dtype, scales.shape) == (np.int8, (num_tokens, width // group))
    steps = np.repeat(np.asarray(scales, np.float64), group, axis=1)
    assert (np.abs(np.asarray(values) * steps - gated_activation_reference(x, "silu")) <= 0.501 * steps).all()
    largest = np.abs(np.asarray(values)).reshape(num_tokens, -1, group).max(-1)
    assert (largest[np.arange(num_tokens) != num_tokens // 2] >= 126).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(gate_up=np.ones((4, 7), np.float32)), r"gate_up is float32\[4, 7\]: must be \[T, 2F\]"),
        (dict(gate_up=np.ones((4, 8), np.float16)), r"gate_up is float16\[4, 8\]: must be \[T, 2F\] of float32 or"),
        (dict(activation="relu"), "activation 'relu': must be one of silu, gelu_pytorch_tanh"),
        (dict(quantize_group=3), "quantize_group 3: must divide 4"),
        (dict(backend="cuda"), "backend 'cuda': must be one of xla, pallas_tpu"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(change, message):
    good = dict(gate_up=np.ones((4, 8), np.float32), activation="silu", backend="xla")
    with pytest.raises(ValueError, match=message):
        gated_activation(**(good | change))
