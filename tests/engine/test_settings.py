"""What is derived at the start from model and machine, each with its reason. The KV pool: test_sizing."""

import pytest

from tests.recording import RecordingReporter
from xlaserve.config import load_config
from xlaserve.engine.machine import Machine
from xlaserve.engine.settings import Settings, resolve_settings
from xlaserve.errors import ConfigError
from xlaserve.models.config import parse_config
from xlaserve.runner.memory import DeviceMemory
from xlaserve.targets import find_target

SIZES = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CPU = Machine("cpu", "cpu", 1, None)


def resolve(*overrides: str, machine: Machine = CPU, **keys) -> tuple[Settings, dict[str, str]]:
    reporter = RecordingReporter()
    config = load_config(None, ["model.dtype=float32", *overrides])
    model = parse_config(SIZES | keys, "config.json")
    settings = resolve_settings(config, model, machine, reporter)
    return settings, {key: reason for key, (_, reason) in reporter.settings.items()}


ROPES = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("rope_type", ROPES)
def test_the_context_is_the_models_own_whatever_its_rope(rope_type):
    """max_position_embeddings is the extended length: no factor is applied to it."""
    settings, _ = resolve(rope_scaling={"rope_type": rope_type} | ROPES[rope_type])
    assert settings.max_model_len == 256
    assert settings.shapes((2,), 256).table_width == 256 // 16
    assert settings.length_reason == "the model's context"


def test_an_asked_context_is_kept_up_to_the_models():
    settings, _ = resolve("model.max_model_len=100")
    assert (settings.max_model_len, settings.length_reason) == (100, "as configured")
    assert settings.shapes((2,), 100).table_width == 7
    with pytest.raises(ConfigError, match=r"model.max_model_len is 257: the model's context is 256 tokens at most"):
        resolve("model.max_model_len=257")


def test_heads_that_no_kernel_takes_are_refused():
    with pytest.raises(ConfigError, match=r"the model's heads: head_dim 264: must be in \[1, 256\]"):
        resolve(head_dim=264)


def test_every_setting_is_told_with_its_reason():
    _, reasons = resolve()
    told = {"device", "attention_backend", "dtype", "cache.dtype", "max_num_seqs", "max_num_batched_tokens"}
    assert reasons.keys() == told | {"token buckets", "quantization"}
    assert all(reasons.values())


@pytest.mark.parametrize(
    ("target", "backend", "kind", "total"),
    [
        ("tpu-v6e-1", "pallas_tpu", "TPU v6 lite", int(31.24 * 2**30)),
        ("h100", "pallas_gpu", "NVIDIA H100 80GB HBM3", int(0.75 * 84_942_979_072)),
    ],
)
def test_a_target_that_is_not_here_decides(target, backend, kind, total):
    """Not this machine, and without the target's compiler."""
    machine = Machine.of(find_target(target), 0.75)
    assert machine == Machine(backend.removeprefix("pallas_"), kind, 1, DeviceMemory(total, 0))
    settings, _ = resolve("model.dtype=auto", machine=machine, torch_dtype="bfloat16", head_dim=128)
    assert (settings.backend, settings.dtype.name, settings.kv_dtype.name) == (backend, "bfloat16", "bfloat16")
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (128, 2048)


def test_devices_that_share_a_model():
    machine = Machine.of(find_target("tpu-v5e-8"), 0.75)
    wide = dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128, torch_dtype="bfloat16")
    settings, _ = resolve("model.dtype=auto", machine=machine, **wide)
    (layout,) = settings.shapes((2,), 256).layouts
    assert (settings.num_devices, layout.num_kv_heads) == (8, 1)
    with pytest.raises(ConfigError, match=r"8 devices cannot share the model's 2 kv heads evenly: .* divides 2$"):
        resolve(machine=machine)
