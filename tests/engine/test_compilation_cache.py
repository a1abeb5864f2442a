"""Engines in processes of their own: a second start finds every program in the persistent compilation cache."""

import json
import subprocess
import sys

import jax

from tests import tiny_models
from xlaserve.runner.compilations import use_persistent_cache

SCRIPT = """
import json, sys
from pathlib import Path
import jax
jax.jit(lambda x: x + 1)(1)  # as a program may that uses jax before it starts an engine
from xlaserve.engine.llm import LLM
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams
overrides = ["model.dtype=float32", "model.max_model_len=64", "scheduler.max_num_seqs=4"]
overrides += ["scheduler.max_num_batched_tokens=8"]
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


def test_a_second_start_compiles_nothing(tmp_path):
    folder, _ = tiny_models.make("llama")
    first = start(folder, tmp_path)
    second = start(folder, tmp_path)
    assert first["compiled"]["start-up"] >= first["programs"]
    assert "unexpected" not in first["compiled"]
    assert second["compiled"] == {}
    assert second["hits"] == sum(first["compiled"].values()) + first["hits"]
    assert second["output"] == first["output"]
    assert not first["torch"]  # a safetensors folder is served without it


def test_a_damaged_cache_only_costs_time(tmp_path):
    folder, _ = tiny_models.make("llama")
    first = start(folder, tmp_path)
    for file in (tmp_path / "programs").iterdir():
        if file.is_file():
            file.write_bytes(file.read_bytes()[:20])
    assert start(folder, tmp_path)["output"] == first["output"]


def test_a_process_may_change_the_folder(tmp_path):
    for name in ("first", "second"):
        use_persistent_cache(tmp_path / name)
        jax.jit(lambda x: x * 3 + 1).lower(1).compile()
        assert any((tmp_path / name).iterdir())
