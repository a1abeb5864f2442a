"""Layers with quantised weights, on one device and on eight, against plain products of what the numbers stand for."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from xlaserve_kernels.quantization import quantize_groups
from xlaserve_kernels.quantized_matmul import quantize_weight

from xlaserve.layers.linear import Linear, linear
from xlaserve.layers.mlp import MLP, gated_mlp
from xlaserve.layers.quantized import QuantizedArray
from xlaserve.sharding import MESH_AXES, sharding_of

GROUP, DEVICES, TOKENS = 128, 8, 5
AXES = {"outputs": ("mlp", "embed"), "inputs": ("embed", "mlp")}  # of the weight, by which of them are shared


def dequantized(values, scales) -> np.ndarray:
    """float32, each scale that of as many neighbours as there are to one."""
    values, scales = np.asarray(values, np.float32), np.asarray(scales, np.float32)
    return values * np.repeat(scales, values.shape[1] // scales.shape[1], axis=1)


def product(x, weight, bias) -> np.ndarray:
    """The same in plain numpy: both quantised, then multiplied as what they stand for."""
    weight, (values, scales) = weight.weight, quantize_groups(x, jnp.int8, GROUP)
    y = dequantized(values, scales) @ dequantized(weight.values, weight.scales[:, None]).T
    return y if bias is None else y + np.asarray(bias, np.float32)


def drawn(out: int, inputs: int, axes, backend: str, mesh: Mesh | None = None, seed: int = 0) -> Linear:
    weight, bias = (np.random.default_rng(seed).standard_normal(shape, np.float32) for shape in ((out, inputs), out))
    quantized = quantize_weight(jnp.asarray(weight), "w8a8", GROUP)
    return Linear(QuantizedArray(quantized, backend, sharding_of(mesh, axes) if mesh else None), jnp.asarray(bias))


def check_products(mesh: Mesh | None, backend: str) -> None:
    """The bias once, whoever shares the weight; and the block of three products with one collective."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((TOKENS, DEVICES * GROUP), np.float32))
    for shared, axes in AXES.items():
        p = drawn(2 * DEVICES, DEVICES * GROUP, axes, backend, mesh)
        for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)):
            y, expected = jax.jit(linear)(x.astype(dtype), p), product(x.astype(dtype), p.weight, p.bias)
            assert y.dtype == dtype
            np.testing.assert_allclose(
                np.asarray(y, np.float32),
                expected,
                atol=tolerance * np.abs(expected).max(),
                err_msg=f"{shared} {dtype}",
            )


def check_gated_mlp(mesh: Mesh | None, backend: str) -> None:
    wide = DEVICES * GROUP
    gate, up = (drawn(wide, GROUP, AXES["outputs"], backend, mesh, seed) for seed in (0, 1))
    p = MLP(gate, up, drawn(GROUP, wide, AXES["inputs"], backend, mesh, seed=2))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((TOKENS, GROUP), np.float32))
    compiled = jax.jit(gated_mlp, static_argnames="activation").lower(x, p, "silu").compile()
    text = compiled.as_text() or ""
    collectives = re.findall(r" (all-[a-z]+|reduce-scatter|collective-permute)\(", text)
    assert collectives == ([] if mesh is None else ["all-reduce"])
    a, b = (product(x, part.weight, part.bias) for part in (gate, up))
    hidden = jnp.asarray(a / (1 + np.exp(-a)) * b)
    expected = product(hidden, p.down_proj.weight, p.down_proj.bias)
    # A hidden value that rounds the other way is a step of its group: 1 / 127 of one of the many that are added.
    np.testing.assert_allclose(compiled(x, p), expected, atol=2e-4 * np.abs(expected).max())


BACKENDS = ["xla", "pallas_gpu_interpret", "pallas_tpu_interpret"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_device(backend):
    check_products(None, backend)
    check_gated_mlp(None, backend)


def test_eight_devices_compute_the_same_with_one_collective():
    """In a process of its own: here there is only one."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}", "JAX_PLATFORMS": "cpu"
    }  # fmt: skip
    shown = subprocess.run(
        [sys.executable, "-m", __name__], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (shown.stdout.split(), shown.returncode) == ([str(DEVICES)], 0), shown.stderr


def test_packed_weights_are_not_shared():
    weight = quantize_weight(jnp.ones((16, 256)), "w4a16", GROUP)
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), MESH_AXES)
    p = Linear(QuantizedArray(weight, "xla", sharding_of(mesh, AXES["outputs"])))
    with pytest.raises(ValueError, match="weight: w4a16 cannot be shared"):
        linear(jnp.ones((1, 256)), p)


if __name__ == "__main__":
    devices = Mesh(np.array(jax.devices()).reshape(1, -1), MESH_AXES)
    check_products(devices, "xla")
    for name in ("xla", "pallas_gpu_interpret"):
        check_gated_mlp(devices, name)
    print(len(jax.devices()))
