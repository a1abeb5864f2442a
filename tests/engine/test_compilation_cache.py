"""Engines in processes of their own: a second start finds every program in the persistent compilation cache."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests import tiny_models
from tests.recording import RecordingReporter
from xlaserve.engine import build
from xlaserve.runner.compilations import use_no_persistent_cache, use_persistent_cache

SCRIPT = """
import json, sys
from pathlib import Path
import jax
jax.jit(lambda x: x + 1)(1)  # as a program may that uses jax before it starts an engine
from xlaserve.engine.llm import LLM
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams
overrides = ["model.dtype=float32", "model.max_model_len=64", "scheduler.max_num_seqs=1"]
overrides += ["scheduler.max_num_batched_tokens=4", *sys.argv[3:]]
with LLM(sys.argv[1], overrides=overrides, cache_dir=Path(sys.argv[2])) as llm:
    programs = len(llm.service._loop._engine._runner.programs)
    output = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, temperature=0.0))[0].token_ids
result = {"programs": programs, "compiled": LOG.compiled(), "hits": LOG.cache_hits(), "output": output}
heavy = [name for name in ("torch", "transformers", "scipy", "matplotlib", "flask") if name in sys.modules]
print(json.dumps(result | {"heavy": heavy}))
"""


def start(model, cache_dir, *overrides: str) -> dict:
    command = [sys.executable, "-c", SCRIPT, str(model), str(cache_dir), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, dict]:
    """(the cache folder, the result) of a start that found the folder empty."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, start(tiny_models.folder("llama"), folder)


def test_report_94_a_second_start_compiles_nothing(first):
    """Though jax has been used before the folder was set; small programs are kept too."""
    cache_dir, result = first
    foreign = cache_dir / "programs" / f"jit_body-{64 * 'f'}-cache"
    foreign.write_bytes(b"of another version")
    second = start(tiny_models.folder("llama"), cache_dir)
    assert foreign.read_bytes() == b"of another version"
    assert result["compiled"]["start-up"] >= result["programs"]
    assert "unexpected" not in result["compiled"]
    assert second["compiled"] == {}
    assert second["hits"] == sum(result["compiled"].values()) + result["hits"]
    assert second["output"] == result["output"]
    assert second["heavy"] == []  # a safetensors folder is served without them, and starts in less time


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20])


def change_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def make_unreadable(file: Path) -> None:
    """Even for root."""
    file.unlink()
    file.mkdir()


def test_report_94_a_damaged_cache_only_costs_time(first, tmp_path):
    """What is not damaged is found, though the cache has been moved."""
    cache_dir, result = first
    damaged = shutil.copytree(cache_dir, tmp_path / "cache")
    files = sorted((damaged / "programs").iterdir())
    assert len(files) >= 8
    for index, damage in enumerate((cut, change_a_byte, make_unreadable)):
        for file in files[index::4]:
            damage(file)
    found = start(tiny_models.folder("llama"), damaged)
    assert found["output"] == result["output"]
    assert found["hits"] >= len(files) // 4
    assert found["hits"] + sum(found["compiled"].values()) == sum(result["compiled"].values())


def test_report_94_a_folder_that_cannot_be_written_only_costs_time(first):
    """Not even root can write there."""
    cache_dir, result = first
    found = start(tiny_models.folder("llama"), cache_dir, "compile.cache_dir=/proc/self/task")
    assert found["output"] == result["output"]
    assert sum(found["compiled"].values()) == sum(result["compiled"].values())


def test_report_94_a_folder_that_cannot_be_made_is_told():
    reporter = RecordingReporter()
    try:
        build._use_cache(Path("/dev/null/programs"), reporter)
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        use_no_persistent_cache()
    value, reason = reporter.settings["compilation cache"]
    assert value == "none"
    assert "/dev/null/programs: cannot be made" in reason


def test_report_94_a_process_may_change_the_folder(tmp_path):
    try:
        for name in ("first", "second"):
            use_persistent_cache(tmp_path / name)
            jax.jit(lambda x: x * 3 + 1).lower(1).compile()
            assert any((tmp_path / name).iterdir())
    finally:
        use_no_persistent_cache()  # else the bundles that this process's other tests write could not be run
