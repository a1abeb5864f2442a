"""Engines in processes of their own: a second start finds every program in the persistent compilation cache."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests import tiny_models
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
overrides += ["scheduler.max_num_batched_tokens=4"]
with LLM(sys.argv[1], overrides=overrides, cache_dir=Path(sys.argv[2])) as llm:
    programs = len(llm.service._loop._engine._runner.programs)
    output = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, temperature=0.0))[0].token_ids
result = {"programs": programs, "compiled": LOG.compiled(), "hits": LOG.cache_hits(), "output": output}
print(json.dumps(result | {"torch": "torch" in sys.modules}))
"""


def start(model, cache_dir) -> dict:
    command = [sys.executable, "-c", SCRIPT, str(model), str(cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, dict]:
    """(the cache folder, the result) of a start that found the folder empty."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, start(tiny_models.folder("llama"), folder)


def test_a_second_start_compiles_nothing(first):
    cache_dir, result = first
    second = start(tiny_models.folder("llama"), cache_dir)
    assert result["compiled"]["start-up"] >= result["programs"]
    assert "unexpected" not in result["compiled"]
    assert second["compiled"] == {}
    assert second["hits"] == sum(result["compiled"].values()) + result["hits"]
    assert second["output"] == result["output"]
    assert not second["torch"]  # a safetensors folder is served without it


def test_a_damaged_cache_only_costs_time(first, tmp_path):
    cache_dir, result = first
    damaged = shutil.copytree(cache_dir, tmp_path / "cache")
    for file in (damaged / "programs").iterdir():
        if file.is_file():
            file.write_bytes(file.read_bytes()[:20])
    assert start(tiny_models.folder("llama"), damaged)["output"] == result["output"]


def test_a_process_may_change_the_folder(tmp_path):
    try:
        for name in ("first", "second"):
            use_persistent_cache(tmp_path / name)
            jax.jit(lambda x: x * 3 + 1).lower(1).compile()
            assert any((tmp_path / name).iterdir())
    finally:
        use_no_persistent_cache()  # else the bundles that this process's other tests write could not be run
