"""Layers with quantised weights, on one device and on eight, against plain products of what the numbers stand for."""

import os
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh
from xlaserve_kernels.quantization import quantize_groups
from xlaserve_kernels.quantized_matmul import quantize_weight

from xlaserve.layers.linear import Embedding, Linear, embed, linear, linears, project
from xlaserve.layers.mlp import MLP, gated_mlp
from xlaserve.layers.params import ArraySpec, spec_bytes
from xlaserve.layers.quantized import Quantization, QuantizedArray, plain_specs
from xlaserve.sharding import MESH_AXES, sharding_of

GROUP, DEVICES, TOKENS = 128, 8, 5
INT8 = Quantization("int8", "w8a8", "xla", (128, 64, 32))
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
    if mesh is None:
        return Linear(QuantizedArray(quantized, backend), jnp.asarray(bias))
    spec = INT8.stored(ArraySpec(weight.shape, axes), np.dtype(np.float32), mesh)
    parts: Any = spec.weight
    placed = jax.tree.map(lambda part, of: jax.device_put(part, sharding_of(mesh, of.axes)), quantized, parts)
    return Linear(spec.replace(weight=placed, backend=backend), jax.device_put(bias, sharding_of(mesh, axes[:1])))


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
        [sys.executable, "-m", __name__], env=environment, capture_output=True, text=True, timeout=240
    )
    assert (shown.stdout.split(), shown.returncode) == ([str(DEVICES)], 0), shown.stderr


SPECS = {
    "embed": ArraySpec((40, 96), ("vocab", "embed")),
    "down": ArraySpec((16, 256), ("embed", "mlp")),
    "odd": ArraySpec((16, 70), ("mlp", "embed")),
    "norm": ArraySpec((96,), (None,), "ones"),
}


def test_matrices_are_stored_quantised_in_the_largest_groups_that_come_out_even():
    stored = INT8.stored(SPECS, np.dtype(jnp.bfloat16))
    assert stored["norm"] == SPECS["norm"]
    parts = {name: stored[name].weight for name in ("embed", "down", "odd")}
    assert {name: part.group_size for name, part in parts.items()} == {"embed": 32, "down": 128, "odd": None}
    assert [(part.values.dtype, part.scales.shape) for part in parts.values()] == [
        (np.int8, (40,)), (np.int8, (16,)), (np.int8, (16,))
    ]  # fmt: skip
    assert plain_specs(stored) == SPECS
    assert spec_bytes(stored, np.dtype(jnp.bfloat16)) == 40 * 96 + 16 * 256 + 16 * 70 + 4 * (40 + 16 + 16) + 2 * 96


def test_devices_that_share_the_inputs_have_whole_groups_each():
    mesh: Any = AbstractMesh((1, 4), MESH_AXES)
    assert INT8.stored(SPECS, np.dtype(np.float32), mesh)["down"].weight.group_size == 64  # 256 / 4 inputs


def test_rows_of_embeddings():
    weight = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
    quantized = quantize_weight(jnp.asarray(weight), "w8a8", 32)
    ids = jnp.array([3, 0, 23, 3])
    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.bfloat16, 1e-2)):
        rows = embed(ids, Embedding(QuantizedArray(quantized, "xla", dtype=np.dtype(dtype))))
        assert rows.dtype == dtype
        expected = np.asarray(quantized.values, np.float32) * np.asarray(quantized.scales)[:, None]
        np.testing.assert_allclose(np.asarray(rows, np.float32), expected[np.asarray(ids)], rtol=tolerance)
        assert np.abs(expected - weight).max() < 4 / 127


def test_logits_are_float32_whatever_the_hidden_states_are():
    p = drawn(40, 128, AXES["outputs"], "xla")
    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, 128)), jnp.bfloat16)
    logits = project(x, p.weight)
    assert logits.dtype == jnp.float32
    expected = product(x, p.weight, None)
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


def test_a_layer_may_have_some_of_its_weights_quantised():
    """As checkpoints do that leave out some, and GGUF files that mix ways."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((TOKENS, 2 * GROUP), np.float32))
    plain = Linear(jnp.asarray(np.random.default_rng(2).standard_normal((9, 2 * GROUP), np.float32)))
    by_token = Linear(QuantizedArray(quantize_weight(plain.weight, "w8a16"), "xla"))
    by_group = drawn(16, 2 * GROUP, AXES["outputs"], "xla")
    for parts in ((by_group, plain, by_token), (by_group, by_token), (by_group, by_group)):
        for y, part in zip(jax.jit(linears)(x, parts), parts, strict=True):
            np.testing.assert_array_equal(y, jax.jit(linear)(x, part))


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
