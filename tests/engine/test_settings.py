"""What is derived at the start: the context, the KV pool and the limits, each with its reason."""

from types import SimpleNamespace

import pytest

from tests.recording import RecordingReporter
from xlaserve.config import load_config
from xlaserve.engine.settings import Settings, _free_memory, resolve_settings
from xlaserve.errors import ConfigError
from xlaserve.models.config import parse_config
from xlaserve.sharding import make_mesh

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
NUM_WEIGHTS = 1000
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4  # keys and values, layers, kv heads, head size, float32


def resolve(*overrides: str, **keys) -> tuple[Settings, dict[str, str]]:
    reporter = RecordingReporter()
    config = load_config(None, ["model.dtype=float32", *overrides])
    model = parse_config(SIZES | keys, "config.json")
    settings = resolve_settings(config, model, NUM_WEIGHTS, make_mesh(), reporter)
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
    settings, reasons = resolve(rope_scaling={"rope_type": rope_type} | ROPES[rope_type])
    assert settings.max_model_len == 256
    assert settings.shapes.table_width == 256 // 16
    assert reasons["max_model_len"] == "the model's context"


def test_an_asked_context_is_kept_up_to_the_models():
    settings, reasons = resolve("model.max_model_len=100")
    assert (settings.max_model_len, settings.shapes.table_width) == (100, 7)
    assert reasons["max_model_len"] == "as configured"
    with pytest.raises(ConfigError, match=r"model.max_model_len is 257: the model's context is 256 tokens at most"):
        resolve("model.max_model_len=257")


def test_a_small_pool_cuts_a_derived_context_but_not_an_asked_one():
    settings, reasons = resolve("cache.num_blocks=9")
    assert settings.max_model_len == 8 * 16
    assert "KV pool" in reasons["max_model_len"]
    settings, _ = resolve("cache.num_blocks=9", "model.max_model_len=200")
    assert settings.max_model_len == 200  # single requests are held to the pool instead


@pytest.mark.parametrize(
    ("overrides", "num_blocks", "reason"),
    [
        (("cache.num_blocks=9",), 9, "cache.num_blocks"),
        ((f"cache.memory={5 * 16 * BYTES_PER_TOKEN}",), 5, "cache.memory"),
        ((f"cache.memory={5 * 16 * BYTES_PER_TOKEN - 1}",), 4, "cache.memory"),
        ((f"cache.memory={5 * 16 * BYTES_PER_TOKEN}", "cache.dtype=bfloat16"), 10, "cache.memory"),
        ((f"cache.memory={5 * 16 * BYTES_PER_TOKEN}", "cache.block_size=8"), 10, "cache.memory"),
        (("scheduler.max_num_seqs=3",), 1 + 3 * 16, "all that max_num_seqs requests"),
        (("scheduler.max_num_seqs=3", "model.max_model_len=20"), 1 + 3 * 2, "all that max_num_seqs requests"),
    ],
    ids=str,
)
def test_the_pool(overrides, num_blocks, reason):
    settings, reasons = resolve(*overrides)
    assert settings.shapes.num_blocks == num_blocks
    assert reasons["KV pool"].startswith(reason)


def test_a_pool_of_no_block_is_refused():
    with pytest.raises(ConfigError, match=r"cache.memory: 100 bytes hold no block of 16 tokens"):
        resolve("cache.memory=100")


def test_heads_that_no_kernel_takes_are_refused():
    with pytest.raises(ConfigError, match=r"the model's heads: head_dim 264: must be in \[1, 256\]"):
        resolve(head_dim=264)


def test_every_setting_is_told_with_its_reason():
    _, reasons = resolve()
    told = {"device", "attention_backend", "dtype", "cache.dtype", "max_num_seqs", "max_num_batched_tokens"}
    assert reasons.keys() == told | {"max_model_len", "KV pool", "token buckets"}
    assert all(reasons.values())


def test_memory_on_a_device_is_what_its_weights_leave_free():
    """They are not there yet when the pool is sized."""

    def device(**stats) -> SimpleNamespace:
        return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)

    assert _free_memory(device(bytes_limit=1000, bytes_in_use=100), weight_bytes=300) == 600
    assert _free_memory(device(), weight_bytes=300) is None
    assert _free_memory(SimpleNamespace(platform="cpu"), weight_bytes=300) is None
