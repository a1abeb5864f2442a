"""The kernels around attention become code for chips that are not here, at shapes of real models. None is compiled."""

import functools

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from xlaserve_kernels.fused_norm.arg_specs import NORMS
from xlaserve_kernels.gated_activation.arg_specs import GATES
from xlaserve_kernels.grouped_matmul.arg_specs import GROUPED_MATMULS
from xlaserve_kernels.quantized_matmul.arg_specs import MATMULS, VARIANTS

TARGETS = {
    "tpu": AbstractDevice("TPU v5 lite", 1, "tpu"),
    "cuda": AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"),
    "rocm": AbstractDevice("gfx942", None, "gpu"),
}
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # by jax 0.12


@functools.cache
def mesh(target: str) -> AbstractMesh:
    return AbstractMesh((), (), abstract_device=TARGETS[target])


def assert_lowers(call, *options, target: str, name: str) -> None:
    function, arguments = call(*options, "pallas_tpu" if target == "tpu" else "pallas_gpu")
    with jax.sharding.use_abstract_mesh(mesh(target)):
        text = jax.jit(function).trace(*arguments).lower(lowering_platforms=(target,)).as_text()
    assert "custom_call" in text
    assert name in text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "num_tokens", "variant"),
    [("smollm2-135m gate_up", 9, variant) for variant in VARIANTS] + [("llama-3.1-8b o", 1024, "w8a8 by group")],
)
def test_quantized_matmul(shape, num_tokens, variant, target):
    assert_lowers(MATMULS[shape].call, num_tokens, variant, target=target, name="quantized_matmul")


@pytest.mark.parametrize("target", ["cuda", "rocm"])
@pytest.mark.parametrize("shape", ["qwen3-30b-a3b gate_up", "gpt-oss-20b down"])
def test_grouped_matmul(shape, target):
    assert_lowers(GROUPED_MATMULS[shape].call, 64, target=target, name="grouped_matmul")


@pytest.mark.parametrize("target", ["cuda", "rocm"])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("shape", ["gemma-3-27b"])
def test_add_rms_norm(shape, quantized, target):
    assert_lowers(NORMS[shape].call, 64, quantized, target=target, name="add_rms_norm")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", ["gemma-3-27b", "smollm2-135m"])
def test_gated_activation(shape, target):
    assert_lowers(GATES[shape].call, 64, True, target=target, name="gated_activation")
