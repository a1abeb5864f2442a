"""Plans against figures that are computed by hand, and what they say where no compiler is asked."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.engine.test_settings import SIZES
from xlaserve.config import load_config
from xlaserve.engine.planning import plan as plan_module
from xlaserve.engine.planning.advice import advice
from xlaserve.engine.planning.estimate import estimate_memory, num_programs
from xlaserve.engine.planning.floors import Floors, _pairs
from xlaserve.engine.planning.plan import Plan, make_plan
from xlaserve.engine.planning.report import as_json, figures
from xlaserve.engine.reporter import SilentReporter
from xlaserve.errors import ConfigError
from xlaserve.models.config import parse_config
from xlaserve.runner.program_memory import ProgramMemory
from xlaserve.targets import find_target

LLAMA_8B = Path(__file__).parents[2] / "benchmarks" / "llama_3_1_8b.json"
GIB, MIB = 2**30, 2**20
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
GEMMA = SIZES | {
    "model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 32,
    "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
}  # fmt: skip


def llama(**keys) -> dict:
    return json.loads(LLAMA_8B.read_text()) | keys


def plan(target: str, values: dict, *overrides: str, gpu_share: float = 0.75) -> Plan:
    config, model = load_config(None, list(overrides)), parse_config(values, "config.json")
    return make_plan(
        config, model, find_target(target), gpu_share=gpu_share, num_cores=2, compiled=False, reporter=SilentReporter()
    )


def test_llama_3_1_8b_on_an_h100():
    """As its authors publish: 8.03e9 parameters; 8 of 32 heads have keys and values: 128 KiB a token, not 512."""
    found = plan("h100", llama())
    assert found.num_params == 8_030_261_248
    assert found.weight_bytes == 2 * 8_030_261_248
    assert found.textbook_kv_bytes == 2 * 32 * 4096 * 2 == 512 * 1024
    assert found.kv_bytes == 2 * 32 * 8 * 128 * 2 == 128 * 1024
    assert found.usable_bytes == int(0.75 * 84_942_979_072)
    assert found.num_programs == 17  # 8 bodies, 2 x 2 heads that sample, and five more
    left = 0.9 * found.usable_bytes - found.weight_bytes - found.programs.num_bytes
    assert 0 <= left - found.sizing.pool.num_bytes < 16 * MIB + 16 * 128 * 1024
    tokens = (found.sizing.shapes.num_blocks[0] - 1) * 16
    assert [found.held(length) for length in (512, 2048, 8192)] == [tokens // length for length in (512, 2048, 8192)]
    assert found.concurrency(512) == 128 < found.held(512)
    assert found.concurrency(8192) == found.held(8192) < 128


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_a_quantised_kv_pool_has_a_scale_beside_each_vector(dtype):
    plain, found = (plan("h100", llama(), *settings) for settings in ((), (f"cache.dtype={dtype}",)))
    assert found.kv_bytes == 2 * 32 * 8 * (128 + 4)
    assert found.sizing.pool.demand.groups[0].bytes_per_block == 16 * found.kv_bytes
    assert found.held(2048) == pytest.approx(plain.held(2048) * 256 / 132, rel=0.02)
    step, plain_step = found.decode[1], plain.decode[1]
    assert plain_step.bandwidth - step.bandwidth == pytest.approx(2048 * (plain.kv_bytes - found.kv_bytes) / 3352e9)


def test_eight_chips_hold_an_eighth_each():
    found = plan("tpu-v5e-8", llama())
    norms = (2 * 32 + 1) * 4096  # each has them all
    assert found.weight_bytes == 2 * ((8_030_261_248 - norms) // 8 + norms)
    group = found.sizing.pool.demand.groups[0]
    assert group.bytes_per_block == 16 * 128 * 1024 / 8
    assert found.kv_bytes == 128 * 1024  # of all together


def test_weights_in_int8():
    """A byte for each value of a matrix, four for the scale of each of its outputs; norms stay in bfloat16."""
    found, plain = plan("h100", llama(), "model.quantization=int8"), plan("h100", llama())
    norms = (2 * 32 + 1) * 4096
    outputs = 2 * 128256 + 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)
    assert found.num_params == plain.num_params
    assert found.weight_bytes == 8_030_261_248 - norms + 4 * outputs + 2 * norms
    assert found.sizing.pool.num_bytes > plain.sizing.pool.num_bytes + 7 * GIB
    embeddings = 128256 * (4096 + 4)
    assert found.decode[1].bandwidth == pytest.approx((found.weight_bytes - embeddings + 2048 * 131072) / 3352e9)
    attention = 4 * 2048 * 32 * 128 * 32 / 989e12  # in bfloat16, the rest at twice that rate
    assert found.decode[1].arithmetic == pytest.approx(
        (plain.decode[1].arithmetic - attention) / (1979 / 989) + attention
    )
    assert as_json(found)["quantization"] == "int8"
    eighth = plan("tpu-v5e-8", llama(), "model.quantization=int8")
    shared = 32 * (4096 + 4096)  # scales of outputs that no device shares: o and down
    assert eighth.weight_bytes == (8_030_261_248 - norms + 4 * (outputs - shared)) // 8 + 4 * shared + 2 * norms


def test_a_llama_70b_needs_more_than_one_card():
    """80 layers of 8192: 70.6e9 parameters, 141 GB in bfloat16."""
    values = llama(
        num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, head_dim=128
    )
    found = plan("h100", values)
    assert found.num_params == pytest.approx(70.55e9, rel=1e-3)
    assert "nothing is left for the KV pool" in found.problem
    told = list(advice(found))
    assert told[0] == found.problem
    assert "h100x4" in told[1]
    assert "h100x1" not in told[1]
    assert all(figure.value is None for figure in figures(found) if figure.name in ("pool_bytes", "requests_of_512"))
    fitting = plan("h100x4", values)
    assert fitting.problem is None
    assert fitting.kv_bytes == 2 * 80 * 8 * 128 * 2
    assert json.loads(json.dumps(as_json(found)))["fits"] is False


def test_a_model_whose_heads_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match="8 devices cannot share the model's 2 kv heads"):
        plan("tpu-v5e-8", SIZES)


def test_floors_of_a_decode_step():
    """Weights without the embeddings (tied ones are the head), and the rows' keys and values, at the bandwidth."""
    model = parse_config(llama(), "config.json")
    floors = Floors.of(model, find_target("h100"), BFLOAT16, 2 * 128)
    weights = 2 * (8_030_261_248 - 128256 * 4096)
    one = floors.decode(1, 2048)
    assert one.bandwidth == pytest.approx((weights + 2048 * 131072) / 3352e9)
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    operations = 2 * matrices + 2 * 128256 * 4096 + 4 * 2048 * 32 * 128 * 32
    assert one.arithmetic == pytest.approx(operations / 989e12)
    assert (one.least, one.limit) == (one.bandwidth, "bandwidth")
    many = floors.decode(64, 2048)
    assert many.bandwidth == pytest.approx((weights + 64 * 2048 * 131072) / 3352e9)
    assert many.arithmetic == pytest.approx(64 * one.arithmetic)
    tied = parse_config(llama(tie_word_embeddings=True), "config.json")
    assert Floors.of(tied, find_target("h100"), BFLOAT16, 2 * 128).weight_bytes == weights


def test_floors_of_a_prompt():
    """Chunk by chunk each reads the weights; query i sees i keys."""
    floors = Floors.of(parse_config(llama(), "config.json"), find_target("tpu-v6e-4"), BFLOAT16, 2 * 128)
    whole, halves = floors.prefill(4096, 4096), floors.prefill(4096, 2048)
    weights = floors.weight_bytes / (4 * 1638e9)
    assert halves.bandwidth - whole.bandwidth == pytest.approx(weights + 2048 * 131072 / (4 * 1638e9))
    pairs = 4096 * 4097 // 2
    operations = 2 * 4096 * floors.matrix_weights + 2 * 128256 * 4096 + 4 * pairs * 32 * 128 * 32
    assert whole.arithmetic == pytest.approx(operations / (4 * 918e12))
    assert halves.arithmetic - whole.arithmetic == pytest.approx(2 * 128256 * 4096 / (4 * 918e12))  # samples twice
    assert whole.limit == "arithmetic"


@pytest.mark.parametrize("window", [1, 3, 5, 8, 100])
def test_pairs_that_see_each_other(window):
    for context in range(1, 12):
        for new in range(1, context + 1):
            counted = sum(min(position + 1, window) for position in range(context - new, context))
            assert _pairs(new, context, window) == counted


def test_a_sliding_window_is_read_no_further():
    model = parse_config(GEMMA, "config.json")
    floors = Floors.of(model, find_target("h100"), BFLOAT16, 2 * 16)
    token = 2 * 2 * 16 * 2  # of one layer
    read = floors.decode(1, 4096).bandwidth - floors.decode(1, 2048).bandwidth
    assert read * 3352e9 == pytest.approx(2048 * token)  # of the one full layer of six


def test_chips_of_two_devices():
    """Half a chip's bandwidth is a device's: two devices are one chip."""
    model = parse_config(llama(), "config.json")
    assert Floors.of(model, find_target("tpu-v7x-2"), BFLOAT16, 256).bytes_per_second == 7380e9
    assert Floors.of(model, find_target("tpu-v7x-8"), BFLOAT16, 256).operations_per_second == 4 * 2307e12
    assert Floors.of(model, find_target("cpu"), BFLOAT16, 256) is None


def test_what_is_estimated_is_marked(monkeypatch):
    marked = {figure.name for figure in figures(plan("h100", llama())) if figure.estimated}
    by_memory = {"activation_peak_bytes", "program_bytes"}
    sizes = {"pool_bytes", "num_blocks", "max_model_len", "requests_of_512", "requests_of_2048", "requests_of_8192"}
    assert marked == by_memory | sizes | {"compile_seconds", "itl_floor_ms_all"}
    given = plan("h100", llama(), "cache.memory=8GiB")
    assert {figure.name for figure in figures(given) if figure.estimated} == by_memory | {"compile_seconds"}
    found = as_json(given)["figures"]
    assert found["pool_bytes"] == {"value": given.sizing.pool.num_bytes, "unit": "bytes", "estimated": False}
    assert found["activation_peak_bytes"]["estimated"] is True
    compiled = ProgramMemory(temporaries=3 * GIB, code=0, outputs=0, state=0)
    monkeypatch.setattr(plan_module, "probe_memory", lambda *_: compiled)
    monkeypatch.setattr(plan_module, "make_mesh", lambda _: None)
    monkeypatch.setattr(plan_module, "abstract_weights", lambda *_: parse_config)
    monkeypatch.setattr(plan_module, "head_weight", lambda _: None)
    monkeypatch.setattr(plan_module, "replicated", lambda _: None)
    monkeypatch.setattr(type(find_target("h100")), "devices", lambda _: [])
    config, model = load_config(None, []), parse_config(llama(), "config.json")
    seen = make_plan(
        config, model, find_target("h100"), gpu_share=0.75, num_cores=2, compiled=True, reporter=SilentReporter()
    )
    assert seen.programs == compiled
    assert {figure.name for figure in figures(seen) if figure.estimated} == {"compile_seconds"}


def test_a_given_pool_that_is_too_large_does_not_fit():
    found = plan("h100", llama(), "cache.memory=70GiB")
    assert "are more than the" in found.problem
    assert plan("h100", llama(), "cache.memory=40GiB", gpu_share=0.75).problem is None


def test_what_limits_is_said():
    told = " ".join(advice(plan("h100", llama())))
    assert "limited by scheduler.max_num_seqs, 128" in told
    assert "Decoding is limited by bandwidth" in told
    assert "Prompts are limited by arithmetic" in told
    told = " ".join(advice(plan("h100", llama(), "scheduler.max_num_seqs=512", "cache.memory=8GiB")))
    assert "Concurrency is limited by KV memory: the pool holds 31 requests of 2,048 tokens" in told
    assert "Requests are limited to 65,520 tokens of the model's 131,072" in told
    assert "Prompts are limited by bandwidth" in " ".join(
        advice(plan("h100", llama(), "scheduler.max_num_batched_tokens=128"))
    )


def test_a_cpu_has_no_floors():
    found = plan("cpu", SIZES, "model.dtype=float32", "cache.num_blocks=65")
    assert (found.decode, found.prefill, found.usable_bytes) == ({}, {}, None)
    assert found.sizing.shapes.num_blocks == (65,)
    values = {figure.name: figure.value for figure in figures(found)}
    assert values["itl_floor_ms_one"] is None
    assert values["requests_of_512"] == 0  # the model's context is 256


@pytest.mark.parametrize(("target", "code"), [("h100", 0), ("tpu-v6e-1", 1)])
def test_an_estimate_grows_with_what_is_computed(target, code):
    small, large = (
        plan(target, llama(num_hidden_layers=4), f"scheduler.max_num_batched_tokens={tokens}", "cache.memory=1GiB")
        for tokens in (512, 4096)
    )
    assert small.programs.temporaries < large.programs.temporaries
    platform = find_target(target).platform
    estimated = estimate_memory(large.sizing.shapes, platform)
    assert (estimated.code > 0) == code
    assert num_programs(large.sizing.shapes) == large.num_programs
