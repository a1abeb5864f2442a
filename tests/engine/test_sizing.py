"""The KV pool at the start: its budget, its blocks, the context it allows, and what is told of it."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from tests.engine.test_settings import CPU, SIZES
from tests.recording import RecordingReporter
from xlaserve.config import load_config
from xlaserve.engine import kv_budget
from xlaserve.engine.settings import resolve_settings
from xlaserve.engine.sizing import Sizing, check_memory, size_pools
from xlaserve.errors import ConfigError
from xlaserve.models.config import parse_config
from xlaserve.runner.memory import DeviceMemory
from xlaserve.runner.program_memory import ProgramMemory

MIB = 2**20
MEMORY: DeviceMemory | None = None  # of the device; it, and what programs need, are given by the fixture
NEEDED = ProgramMemory(0, 0, 0, 0)
BLOCK = 16 * 2 * 2 * 2 * 16 * 4  # bytes: tokens, keys and values, layers, kv heads, head size, float32
WINDOWED = {"model_type": "mistral", "sliding_window": 32}
MIXED = {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32, "sliding_window_pattern": 2}
LONG = {"max_position_embeddings": 65536}


def size(*overrides: str, weight_mib: int = 0, **keys) -> tuple[Sizing, dict[str, tuple[str, str]]]:
    """The sizing, and {key: (value, reason)} as told."""
    reporter = RecordingReporter()
    config = load_config(None, ["model.dtype=float32", *overrides])
    settings = resolve_settings(config, parse_config(SIZES | keys, "config.json"), CPU, RecordingReporter())
    found = size_pools(config, settings, weight_mib * MIB, MEMORY, lambda _: NEEDED, reporter)
    return found, reporter.settings


@pytest.fixture
def device(monkeypatch):
    """Gives the device memory of its own; says what programs will need."""

    def give(total_mib: int, in_use_mib: int = 0, programs_mib: int = 0) -> None:
        memory = DeviceMemory(total_mib * MIB, in_use_mib * MIB)
        monkeypatch.setattr(sys.modules[__name__], "MEMORY", memory)
        monkeypatch.setattr(sys.modules[__name__], "NEEDED", ProgramMemory(programs_mib * MIB, 0, 0, 0))

    return give


@pytest.mark.parametrize(
    ("overrides", "num_blocks", "reason"),
    [
        (("cache.num_blocks=17",), 17, "cache.num_blocks"),
        ((f"cache.memory={20 * BLOCK}",), 20, "cache.memory"),
        ((f"cache.memory={20 * BLOCK - 1}",), 19, "cache.memory"),
        ((f"cache.memory={20 * BLOCK}", "cache.dtype=bfloat16"), 40, "cache.memory"),
        ((f"cache.memory={20 * BLOCK}", "cache.block_size=8"), 40, "cache.memory"),
        ((f"cache.memory={20 * BLOCK}", "cache.dtype=int8"), 64, "cache.memory"),  # 64 bytes become 16 and a scale
        ((f"cache.memory={20 * BLOCK}", "cache.dtype=fp8"), 64, "cache.memory"),
        (("scheduler.max_num_seqs=3",), 1 + 3 * 16, "all that max_num_seqs requests"),
        (("scheduler.max_num_seqs=3", "cache.memory=1GiB"), 1 + 3 * 16, "all that max_num_seqs requests"),
        (("scheduler.max_num_seqs=3", "model.max_model_len=20"), 1 + 3 * 2, "all that max_num_seqs requests"),
    ],
    ids=str,
)
def test_the_pool(overrides, num_blocks, reason):
    found, told = size(*overrides)
    assert found.shapes.num_blocks == (num_blocks,)
    assert told["KV pool"][1].startswith(reason)


@pytest.mark.parametrize(
    ("overrides", "source", "remedy"),
    [
        (["cache.num_blocks=9"], r"cache.num_blocks: 9", "set cache.num_blocks to 17"),
        ([f"cache.memory={9 * BLOCK}"], r"cache.memory: 0 MiB", "set cache.memory to 1MiB"),
    ],
    ids=str,
)
def test_a_small_pool_caps_the_models_context_but_refuses_an_asked_one(overrides, source, remedy):
    found, told = size(*overrides)
    assert (found.max_model_len, found.shapes.table_width) == (128, 8)
    assert told["max_model_len"] == (128, f"what the KV pool holds ({source}); for the model's 256, {remedy}")
    held = (
        rf"model.max_model_len is 256: the KV pool \({source}\) holds requests of at most 128 tokens. Lower .*{remedy}"
    )
    with pytest.raises(ConfigError, match=held):
        size(*overrides, "model.max_model_len=256")
    assert size(*overrides, "model.max_model_len=128")[0].max_model_len == 128


def test_the_remedies_are_enough(device):
    for overrides in (["cache.num_blocks=9"], ["cache.memory=20MiB"], ["cache.memory_utilization=0.25"]):
        device(total_mib=200, in_use_mib=10, programs_mib=8)
        _, told = size(*overrides, weight_mib=10, **LONG)
        setting, value = told["max_model_len"][1].split(", set ")[1].split(" to ")
        found, _ = size(f"{setting}={value}", "model.max_model_len=65536", weight_mib=10, **LONG)
        assert found.max_model_len == 65536


def test_a_pool_of_no_block_is_refused():
    with pytest.raises(ConfigError, match=r"cache.memory: .*: 100 bytes hold no block of 16 tokens"):
        size("cache.memory=100")


def test_a_share_of_an_unknown_memory_is_refused():
    with pytest.raises(ConfigError, match=r"cache.memory_utilization is 0.5: .*; set cache.memory"):
        size("cache.memory_utilization=0.5")


def test_groups_with_a_window_take_what_they_need():
    keys = MIXED | LONG
    found, told = size("scheduler.max_num_seqs=2", "scheduler.max_num_batched_tokens=16", "cache.memory=1GiB", **keys)
    assert found.shapes.num_blocks == (1 + 2 * 4096, 1 + 2 * (2 + 2) + 2)
    assert "blocks of 16: 8193 for 1 full layers, 11 for 1 sliding layers" in told["KV pool"][0]
    given, _ = size("scheduler.max_num_seqs=2", "cache.num_blocks=5000", **keys)
    assert given.shapes.num_blocks == (5000, 1 + 2 * (2 + 2) + 2 * 16)


def test_a_window_makes_a_long_context_fit():
    found, _ = size("cache.memory=1MiB", "model.max_model_len=65536", "scheduler.max_num_seqs=1", **WINDOWED, **LONG)
    assert found.max_model_len == 65536
    with pytest.raises(ConfigError, match=r"model.max_model_len is 65536"):
        size("cache.memory=1MiB", "model.max_model_len=65536", "scheduler.max_num_seqs=1", **LONG)


def test_it_is_told_what_fits():
    _, told = size("cache.num_blocks=2049", "model.max_model_len=5000", "scheduler.max_num_seqs=4", **LONG)
    size_told, reason = told["KV pool"]
    assert size_told == "32,768 tokens, 16 MiB; blocks of 16: 2049 for 2 full layers"
    assert reason == "cache.num_blocks"
    assert told["requests held"] == ("32 of 1,024, 8 of 4,096, 6 of 5,000 tokens", "at most 4 run at once")


def test_on_a_device_the_pool_gets_what_weights_and_programs_leave(device):
    device(total_mib=1000, in_use_mib=50, programs_mib=30)
    found, told = size(weight_mib=300, **LONG)
    left = (900 - 50 - 300 - 30) // 16 * 16 * MIB
    assert 0 <= left - found.pool.num_bytes < BLOCK
    assert told["KV pool"][1] == (
        "cache.memory_utilization: 90% of 1,000 MiB, less 300 MiB of weights, 30 MiB for programs and 50 MiB in use"
    )
    half, _ = size("cache.memory_utilization=0.5", weight_mib=300, **LONG)
    assert 0 <= (500 - 50 - 300 - 30) // 16 * 16 * MIB - half.pool.num_bytes < BLOCK


def test_on_a_device_what_running_requests_cannot_use_keeps_prefixes(device):
    device(total_mib=1000)
    found, _ = size("scheduler.max_num_seqs=2")
    assert found.pool.requests(256) > 2


def test_a_few_bytes_in_use_change_no_program(device):
    sizes = set()
    for in_use_mib in (0, 1, 2, 3):
        device(total_mib=1000, in_use_mib=in_use_mib)
        sizes.add(size()[0].shapes.num_blocks)
    assert len(sizes) == 1


@pytest.mark.parametrize(("weights", "programs"), [(900, 0), (100, 800)])
def test_a_device_with_nothing_left_is_refused(weights, programs, device):
    device(total_mib=1000, programs_mib=programs)
    message = rf"cache.memory_utilization: 90% of 1,000 MiB, less {weights} MiB of weights.*nothing is left"
    with pytest.raises(ConfigError, match=message):
        size(weight_mib=weights)


def test_an_asked_length_that_no_share_of_the_device_holds(device):
    device(total_mib=100)
    with pytest.raises(ConfigError, match=r"or take a device with \d+ MiB more"):
        size("model.max_model_len=1000000", max_position_embeddings=1000000)


@pytest.mark.parametrize(
    ("available", "expected"), [(None, 1024), (10_000, 1024), (2_300, 512), (1_200, 256), (350, 16), (100, 16)]
)
def test_the_hosts_memory_is_shared(available, expected, monkeypatch):
    """At most half of what is left beside 300 MiB of weights, in few steps: other sizes are other programs."""
    monkeypatch.setattr(kv_budget, "available_host_memory", lambda: available and available * MIB)
    budget = kv_budget._of_host(300 * MIB)
    assert budget.num_bytes == expected * MIB
    assert budget.reason.startswith(f"{expected:,} MiB")


class Program:
    def __init__(self, temporaries: int):
        self.temporaries = temporaries

    def memory_analysis(self) -> SimpleNamespace:
        return SimpleNamespace(
            temp_size_in_bytes=self.temporaries,
            generated_code_size_in_bytes=3 * MIB,
            output_size_in_bytes=MIB,
            alias_size_in_bytes=0,
        )


def test_programs_that_need_more_than_was_left_to_them_are_refused(device):
    device(total_mib=1000, programs_mib=30)
    found, _ = size(weight_mib=300)
    reporter = RecordingReporter()
    check_memory(found, [Program(20 * MIB), Program(MIB)], reporter)
    assert reporter.settings["programs' memory"] == (
        "20 MiB of temporaries, 10 MiB besides",
        "by the compiler's account",
    )
    with pytest.raises(ConfigError, match=r"programs \(210 MiB\).* are more than the 1,000 MiB of the device: lower"):
        check_memory(found, [Program(200 * MIB), Program(MIB)], reporter)
    check_memory(dataclasses.replace(found, memory=None), [Program(200 * MIB)], reporter)  # unknown


def test_programs_that_are_still_to_come_are_counted_with_the_code_of_the_largest(device):
    device(total_mib=1000, programs_mib=30)
    found, _ = size(weight_mib=300)
    reporter = RecordingReporter()
    check_memory(found, [Program(20 * MIB), Program(MIB)], reporter, num_more=5)
    assert reporter.settings["programs' memory"][0] == "20 MiB of temporaries, 25 MiB besides"
    with pytest.raises(ConfigError, match=r"programs \(345 MiB\).* are more than"):
        check_memory(found, [Program(20 * MIB), Program(MIB)], reporter, num_more=105)
