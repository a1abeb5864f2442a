"""Engines whose weights are quantised when they are loaded: near transformers, however they come by their weights."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import tiny_models
from tests.engine.test_bundled import Told
from tests.engine.test_swap_models import admin
from tests.tiny_models import LENGTHS, prompts
from xlaserve.config import load_config
from xlaserve.engine.build import build_bundle
from xlaserve.engine.llm import LLM
from xlaserve.engine.machine import Machine
from xlaserve.engine.reporter import SilentReporter
from xlaserve.errors import ConfigError, InvalidRequest
from xlaserve.runner.compilations import LOG
from xlaserve.runner.manifest import Build
from xlaserve.sampling_params import SamplingParams
from xlaserve.sharding import make_mesh

LIMITS = [
    "model.max_model_len=64", "cache.num_blocks=40", "scheduler.max_num_seqs=2",
    "scheduler.max_num_batched_tokens=8", "kernels.attention_backend=xla",
]  # fmt: skip
SETTINGS = [*LIMITS, "model.quantization=int8", "model.dtype=float32"]
GAP = 0.5  # of the best two logits in transformers' float32: where it is wider, the best token is the same
STEP = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=0)


MODEL = str(tiny_models.folder("llama-tied"))


@pytest.fixture(scope="module")
def llm(cache_dir) -> Iterator[LLM]:
    with LLM(MODEL, overrides=SETTINGS, cache_dir=cache_dir) as llm:
        yield llm


def first_tokens(llm: LLM) -> list[int]:
    return [each.token_ids[0] for each in llm.generate(prompts(LENGTHS), STEP)]


def test_tokens_part_from_float32_only_where_the_best_two_are_near(llm):
    exact = [logits[-1] for logits in tiny_models.logits("llama-tied", LENGTHS)]
    for found, logits in zip(first_tokens(llm), exact, strict=True):
        assert logits.max() - logits[found] <= GAP


def test_embeddings_and_head_are_one_array_of_int8(llm):
    params = llm.service._loop._engine._runner._weights[0].params
    embeddings = params.model.embed_tokens.weight
    assert params.lm_head is None
    assert embeddings.weight.values.dtype == np.int8
    kept = {x.dtype.name for x in jax.tree.leaves(params) if x.ndim == 2}
    assert kept == {"int8"}


def test_sleeping_and_swapping_quantise_again_and_compile_nothing(llm):
    before, compiled = first_tokens(llm), LOG.compiled().get("unexpected", 0)
    for level in (1, 2):
        admin(llm.service).sleep(level, 10.0)
        admin(llm.service).wake()
        assert first_tokens(llm) == before
    admin(llm.service).swap(tiny_models.folder("llama-tied"), "drain", 10.0)
    assert first_tokens(llm) == before
    assert LOG.compiled().get("unexpected", 0) == compiled


def test_weights_that_are_not_finite_are_refused(llm, tmp_path):
    _, tensors = tiny_models.read("llama-tied")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    (tmp_path / "config.json").write_text((tiny_models.folder("llama-tied") / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidRequest, match="NaN or infinity"):
        admin(llm.service).swap(tmp_path, "drain", 10.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, cache_dir) -> Path:
    folder, mesh = tmp_path_factory.mktemp("bundles") / "int8", make_mesh()
    config = load_config(None, [*SETTINGS, f"model.source={MODEL}"])
    machine = Machine.here(mesh)
    build_bundle(
        config, folder, build=Build(), machine=machine, mesh=mesh, cache_dir=cache_dir, reporter=SilentReporter()
    )
    return folder


def test_a_bundle_brings_its_quantisation_along(bundle, llm, cache_dir):
    strict = [f"compile.bundle={bundle}", "compile.bundle_strict=true"]
    compiled = LOG.compiled()
    with LLM(MODEL, overrides=[*LIMITS, *strict], cache_dir=cache_dir, reporter=(told := Told())) as bundled:
        assert first_tokens(bundled) == first_tokens(llm)
    assert LOG.compiled() == compiled
    assert told.infos["quantization"] == ("int8", "model.quantization; w8a8 by xla")


@pytest.mark.parametrize("asked", ["model.quantization=none", "model.dtype=float32"])
def test_a_bundle_does_not_fit_where_float32_is_asked_for(bundle, cache_dir, asked):
    strict = [f"compile.bundle={bundle}", "compile.bundle_strict=true"]
    with pytest.raises(ConfigError, match=r"shapes.quantization.name is 'int8', here it is None"):
        LLM(MODEL, overrides=[*LIMITS, asked, *strict], cache_dir=cache_dir)
