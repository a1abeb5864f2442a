"""Lowering for chips that are not here, and the least a step has to do on them."""

import dataclasses

import jax
import pytest

from benchmarks import roofline
from benchmarks.aot import compiling
from benchmarks.aot.body import Step, backend_for, read_config
from xlaserve.targets import CHIPS


@pytest.mark.parametrize("name", CHIPS)
def test_lowering_needs_no_plugin(name):
    lowered = compiling.lower(lambda x: x * 2, [jax.ShapeDtypeStruct((8, 128), "bfloat16")], name)
    assert "stablehlo.multiply" in lowered.as_text()


def test_backends_follow_the_platform():
    assert backend_for("cuda") == backend_for("rocm") == "pallas_gpu"
    assert backend_for("tpu") in ("pallas_tpu", "xla")


def test_the_model_is_llama_3_1_8b():
    """Sizes that its authors publish: 8.03e9 parameters, of which 2 x 0.525e9 are embeddings and head."""
    config = read_config()
    least = roofline.least(config, Step(64, 64, 2048), num_devices=1)
    assert least.weight_bytes / 2 + 2 * config.vocab_size * config.hidden_size == pytest.approx(8.03e9, rel=1e-3)
    assert least.kv_bytes == (64 * 2048 + 64) * 131072  # 128 KiB of KV per token
    assert least.operations == pytest.approx(64 * (least.weight_bytes + 4 * 32 * 32 * 128 * 2048))


def test_a_chunk_of_a_prompt_sees_less_than_the_whole_context():
    config = dataclasses.replace(read_config(), num_layers=1, layer_types=("full",))
    decode = roofline.least(config, Step(3, 3, 10), 1)
    mixed = roofline.least(config, Step(6, 3, 10), 1)  # the last row's 4 tokens see 7, 8, 9 and 10
    pairs = (mixed.operations - 2 * decode.operations) / (4 * config.num_heads * config.head_dim)
    assert pairs == (7 + 8 + 9 + 10 + 2 * 10) - 2 * 30
    assert mixed.kv_bytes - decode.kv_bytes == 3 * 2 * 2 * 8 * 128  # three more tokens are written


def test_tensor_parallel_devices_share():
    config, step = read_config(), Step(64, 64, 2048)
    whole, part = roofline.least(config, step, 1), roofline.least(config, step, 8)
    assert (whole.bytes / 8, whole.operations / 8) == (part.bytes, part.operations)


def test_half_a_chip_takes_twice_as_long():
    least = roofline.Least(7380e6, 0, 0, product_operations=2307e9, attention_operations=0)
    assert least.milliseconds("v7x") == pytest.approx((2.0, 2.0))  # two devices to a chip


def test_int8_halves_the_weights_and_the_time_of_their_products():
    config, step = read_config(), Step(64, 64, 2048)
    plain, int8 = roofline.least(config, step, 1), roofline.least(config, step, 1, int8=True)
    outputs = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert int8.weight_bytes == plain.weight_bytes / 2 + 4 * outputs
    assert (int8.kv_bytes, int8.operations) == (plain.kv_bytes, plain.operations)
    inputs = 32 * (6 * 4096 + 14336)
    assert plain.activation_bytes - int8.activation_bytes == 64 * inputs * (1 - 4 / 128)
    _, slow = plain.milliseconds("h100")
    _, fast = int8.milliseconds("h100")
    assert slow - fast == pytest.approx(1e3 * plain.product_operations * (1 / 989e12 - 1 / 1979e12))
    assert int8.milliseconds("v7x")[1] == plain.milliseconds("v7x")[1]  # no rate for int8 is stated


def test_the_pool_holds_all_rows_at_their_full_context():
    step = Step(64, 64, 2048)
    assert step.num_blocks == 64 * 128 + 1
