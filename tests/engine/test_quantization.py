"""Quantisation at load: when it is chosen, and engines that have it, against transformers."""

import pytest

from tests.engine.test_settings import SIZES
from tests.engine.test_swap_models import admin, changed  # noqa: F401
from xlaserve.config import load_config
from xlaserve.engine.machine import Machine
from xlaserve.engine.quantization import choose_quantization
from xlaserve.errors import ConfigError
from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import parse_config
from xlaserve.targets import find_target

CPU = Machine("cpu", "cpu", 1, None)
GROUPS = (128, 64, 32)


def choose(*overrides: str, backend="cpu_native", machine=CPU, stored="bfloat16") -> tuple[Quantization | None, str]:
    section = load_config(None, list(overrides)).model
    return choose_quantization(section, parse_config(SIZES | {"torch_dtype": stored}, "config.json"), machine, backend)


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_auto_is_weight_only_on_a_cpu_with_native_kernels(dtype, stored):
    chosen, reason = choose(f"model.dtype={dtype}", stored=stored)
    assert chosen == Quantization("int8_weight_only", "w8a16", "cpu_native", ())
    assert reason == "model.quantization: auto, native kernels are the fastest with it; w8a16 by cpu_native"


@pytest.mark.parametrize(
    ("overrides", "where", "why"),
    [
        (["model.dtype=float32"], {}, "model.dtype is float32"),
        (["model.dtype=float16"], {}, "model.dtype is float16"),
        ([], {"stored": "float32"}, "the checkpoint is float32"),
        ([], {"backend": "xla"}, "with native kernels only"),
        ([], {"backend": "pallas_gpu", "machine": Machine.of(find_target("h100"), 0.75)}, "on a CPU only"),
    ],
)
def test_auto_is_none_elsewhere_and_says_why(overrides, where, why):
    assert choose(*overrides, **where) == (None, f"model.quantization: auto, {why}")


@pytest.mark.parametrize(
    ("name", "target", "backend", "mode", "products", "told"),
    [
        ("int8", "cpu", "xla", "w8a8", "xla", "w8a8 by xla"),
        ("int8_weight_only", "cpu", "cpu_native", "w8a16", "cpu_native", "w8a16 by cpu_native"),
        ("fp8", "cpu", "cpu_native", "fp8_w8a8", "xla", "cpu has no float8 products"),
        ("int8", "h100", "pallas_gpu", "w8a8", "pallas_gpu", "w8a8 by pallas_gpu"),
        ("fp8", "h100", "pallas_gpu", "fp8_w8a8", "pallas_gpu", "computed in float16 by pallas_gpu"),
        (
            "fp8",
            "a100",
            "pallas_gpu",
            "fp8_w8a8",
            "pallas_gpu",
            "A100-SXM4-80GB has no float8 products: computed in fl",
        ),
        ("fp8", "tpu-v5e-1", "pallas_tpu", "fp8_w8a8", "pallas_tpu", "v5 lite has no float8 products: computed in bf"),
        ("int8", "tpu-v7x-2", "pallas_tpu", "w8a8", "pallas_tpu", "TPU7x has no int8 products: computed in a wider"),
    ],
)
def test_a_named_one_is_taken_and_tells_what_computes(name, target, backend, mode, products, told):
    machine = CPU if target == "cpu" else Machine.of(find_target(target), 0.75)
    chosen, reason = choose(f"model.quantization={name}", "model.dtype=float32", backend=backend, machine=machine)
    assert chosen == Quantization(name, mode, products, GROUPS if mode == "w8a8" else ())
    assert reason.startswith(f"model.quantization; {mode} by {products}")
    assert told.replace("bf", "bfloat16") in reason


def test_float16_is_refused():
    with pytest.raises(ConfigError, match=r"model.quantization is fp8: model.dtype must be float32 or bfloat16"):
        choose("model.quantization=fp8", "model.dtype=float16")
    assert choose("model.quantization=none", "model.dtype=float16") == (None, "model.quantization")
