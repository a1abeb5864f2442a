"""Starts from end to end with memory that is reported, as devices do, and that is short."""

import pytest

from tests import tiny_models
from tests.recording import RecordingReporter
from tests.tiny_models import GREEDY_TOKENS, LENGTHS, prompts
from xlaserve.engine import build, bundled, machine
from xlaserve.engine.llm import LLM
from xlaserve.errors import ConfigError
from xlaserve.runner.memory import DeviceMemory
from xlaserve.sampling_params import SamplingParams

MIB = 2**20
LIMITS = ["model.dtype=float32", "scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=8"]


def start(name: str, cache_dir, *overrides: str) -> tuple[LLM, dict]:
    reporter = RecordingReporter()
    llm = LLM(
        str(tiny_models.folder(name)), overrides=[*LIMITS, *overrides], cache_dir=cache_dir, reporter=reporter
    )  # fmt: skip
    return llm, reporter.settings


def test_a_device_that_reports_its_memory_is_filled(cache_dir, monkeypatch):
    """Four requests of 240 tokens run at once though the windows' pool has room for 176: blocks return to it."""
    monkeypatch.setattr(machine, "device_memory", lambda device: DeviceMemory(total=64 * MIB, in_use=MIB))
    llm, told = start("gemma3", cache_dir)
    with llm:
        outputs = llm.generate(prompts(LENGTHS), SamplingParams(max_tokens=GREEDY_TOKENS, temperature=0.0))
        assert [output.token_ids for output in outputs] == tiny_models.greedy("gemma3", LENGTHS)
        long = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
        four = [prompts((40,))[0][start:] for start in range(4)]
        together = [output.token_ids for output in llm.generate(four, long)]
        assert llm.service.stats()["preemptions"] == 0
        assert together[0] == llm.generate(four[:1], long)[0].token_ids
        shapes = llm.service._loop._engine._runner._shapes
    full, sliding = shapes.num_blocks
    assert sliding == 1 + (4 * (8 + 2 * 16) + 2 * 8 + 15) // 16  # the window's, whatever there is
    assert full > 4 * 512 // 16  # more than the rows can use: for known prefixes
    assert told["KV pool"][1].startswith("cache.memory_utilization: 90% of 64 MiB, less 0 MiB of weights, ")
    assert "48 MiB; blocks of 16: " in told["KV pool"][0]
    assert told["programs' memory"][0].endswith("besides")


def test_where_memory_is_checked_the_largest_body_is_among_the_first(cache_dir, monkeypatch):
    """Whatever comes later needs less, and the first step already has room for as many tokens."""
    monkeypatch.setattr(machine, "device_memory", lambda device: DeviceMemory(total=64 * MIB, in_use=MIB))
    made = []

    def compilations(jobs, sharding, reason):
        made.append((reason, [size for kind, size in jobs if kind == "body"]))
        return compile_with(jobs, sharding, reason)

    compile_with = bundled.compilations
    monkeypatch.setattr(bundled, "compilations", compilations)
    llm, told = start("llama", cache_dir, "scheduler.max_num_batched_tokens=48", "compile.serve_early=true")
    with llm:
        assert made == [("start-up", [48, 4]), ("background", [24])]
        assert "1 more come" in told["programs"][1]
        assert llm.generate(prompts((40,)), SamplingParams(max_tokens=1, temperature=0.0))
        assert llm.service.late.wait(60)
        assert llm.service.startup.buckets() == (4, 24, 48)


@pytest.fixture
def unread(monkeypatch):
    """No weight is read."""

    def read(*_: object, **__: object):
        raise AssertionError("weights were read")

    monkeypatch.setattr(build, "load_params", read)


@pytest.mark.usefixtures("unread")
def test_an_asked_pool_that_the_device_cannot_hold_is_refused(cache_dir, monkeypatch):
    monkeypatch.setattr(machine, "device_memory", lambda device: DeviceMemory(total=64 * MIB, in_use=MIB))
    with pytest.raises(ConfigError, match=r"KV pool \(70 MiB\).* are more than the 64 MiB of the device: lower"):
        start("llama", cache_dir, "cache.memory=70MiB")


@pytest.mark.usefixtures("unread")
def test_an_asked_length_that_the_pool_cannot_hold_is_refused(cache_dir):
    message = r"model.max_model_len is 512: the KV pool \(cache.num_blocks: 9\) holds requests of at most 128 tokens"
    with pytest.raises(ConfigError, match=message):
        start("llama", cache_dir, "cache.num_blocks=9", "model.max_model_len=512")


def test_the_models_length_is_capped_and_served_up_to_that(cache_dir):
    llm, told = start("llama", cache_dir, "cache.num_blocks=3")
    with llm:
        (output,) = llm.generate([prompts((20,))[0]], SamplingParams(max_tokens=100, ignore_eos=True))
    assert llm.info.max_model_len == llm.info.max_request_tokens == 32
    assert (len(output.token_ids), output.finish_reason) == (12, "length")
    assert told["max_model_len"][1].endswith("for the model's 512, set cache.num_blocks to 33")
