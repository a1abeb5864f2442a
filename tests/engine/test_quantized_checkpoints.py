"""Checkpoints with quantised weights, served: logprobs are those of a plain model with what the weights stand for."""

import re
from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from tests.engine.test_end_to_end import runner_of
from tests.engine.test_prompt_logprobs import scoring
from tests.engine.test_quantized_kv import logprobs_of, picked
from tests.engine.test_swap_models import admin
from tests.models.quantized_writing import CONFIG, FORMS, write_folder
from tests.plain_llama import plain_logprobs, rounded_vectors
from tests.runner.test_bundle import SHAPES, SHARDING
from xlaserve.config import load_config
from xlaserve.engine.bundled import adopted
from xlaserve.engine.llm import LLM
from xlaserve.engine.machine import Machine
from xlaserve.engine.quantization import choose_quantization, stored_formats
from xlaserve.engine.reporter import SilentReporter
from xlaserve.errors import ConfigError, InvalidRequest
from xlaserve.layers.quantized import QuantizedArray
from xlaserve.models.config import parse_config
from xlaserve.models.sources import open_local
from xlaserve.runner.bundle import read_manifest, save_bundle
from xlaserve.runner.manifest import differences, manifest_of

PROMPT = np.random.default_rng(1).integers(0, 96, 40).tolist()
ROUNDED = {"w8a8": "int8", "fp8_w8a8": "fp8"}  # activations


def start(folder: Path, cache_dir: Path, *more: str) -> LLM:
    limits = ["model.dtype=float32", "scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=4", *more]
    return LLM(str(folder), overrides=limits, cache_dir=cache_dir)


def modes(llm: LLM) -> list[str]:
    params = runner_of(llm)._weights[0].params
    leaves = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, QuantizedArray))
    return [leaf.weight.mode for leaf in leaves if isinstance(leaf, QuantizedArray)]


def expected_logprobs(exact: dict[str, np.ndarray], mode: str) -> np.ndarray:
    options = {"rounded_inputs": rounded_vectors(ROUNDED[mode])} if mode in ROUNDED else {}
    return picked(plain_logprobs(CONFIG, exact, PROMPT, **options), PROMPT)


@pytest.mark.parametrize(
    ("form", "more"),
    [
        ("awq", {}), ("int8", {}), ("fp8", {}),
        ("packed, zero points", {"plain": ("lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj")}),
    ],
    ids=str,
)  # fmt: skip
def test_logprobs_are_those_of_a_plain_model(form, more, tmp_path, cache_dir):
    ignored = {"changes": {"ignore": list(more["plain"])}} if more else {}
    exact, mode = write_folder(tmp_path, form, **more, **ignored), FORMS[form][2]
    with start(tmp_path, cache_dir) as llm:
        found = logprobs_of(llm.generate([PROMPT], scoring(0))[0])
        assert modes(llm) == [mode] * (13 if more else 14)
    expected, bound = expected_logprobs(exact, mode), 1e-3
    if mode in ROUNDED:  # an input near a half may be rounded the other way here: far less than all rounding changes
        bound = np.abs(expected - picked(plain_logprobs(CONFIG, exact, PROMPT), PROMPT)).max() / 4
    np.testing.assert_allclose(found, expected, atol=bound)


def test_widened_if_that_is_asked_for(tmp_path, cache_dir):
    exact = write_folder(tmp_path, "gptq", plain=("model.embed_tokens",), changes={"lm_head": True})
    with start(tmp_path, cache_dir, "model.quantization=none") as llm:
        found = logprobs_of(llm.generate([PROMPT], scoring(0))[0])
        assert modes(llm) == []
    np.testing.assert_allclose(found, expected_logprobs(exact, "w8a16"), atol=1e-4)


def test_a_quantised_head_and_other_weights_of_the_same_kind(tmp_path, cache_dir):
    """They replace each other in the running engine; those that are quantised otherwise do not."""
    folders = {name: tmp_path / name for name in ("first", "second", "plain head")}
    changes = {"plain": ("model.embed_tokens",), "changes": {"lm_head": True}}
    first, second = (
        write_folder(folders[name], "gptq", **changes, seed=seed) for seed, name in enumerate(("first", "second"))
    )
    write_folder(folders["plain head"], "gptq")
    with start(folders["first"], cache_dir) as llm:
        assert modes(llm) == ["w4a16"] * 15
        for exact, name in ((first, "first"), (second, "second")):
            admin(llm.service).swap(folders[name], "drain", 60.0)
            found = logprobs_of(llm.generate([PROMPT], scoring(0))[0])
            np.testing.assert_allclose(found, expected_logprobs(exact, "w4a16"), atol=1e-4)
        with pytest.raises(InvalidRequest, match="quantised otherwise"):
            admin(llm.service).swap(folders["plain head"], "drain", 60.0)


CPU = Machine("cpu", "cpu", 1, None)


def choose(folder: Path, *overrides: str, machine: Machine = CPU):
    checkpoint = open_local(folder, str(folder))
    model = parse_config(checkpoint.config, checkpoint.where)
    section = load_config(None, list(overrides)).model
    return choose_quantization(section, model, machine, "xla", stored_formats(checkpoint))


def test_scales_are_kept_in_the_files_precision(tmp_path):
    write_folder(tmp_path, "packed", scales=ml_dtypes.bfloat16)
    quantization, reason = choose(tmp_path)
    assert quantization is not None
    assert {each.scales for _, each in quantization.formats} == {"bfloat16"}
    assert (quantization.name, reason) == ("compressed-tensors", "the checkpoint's; w4a16 by xla")


@pytest.mark.parametrize(
    ("form", "overrides", "machine", "told"),
    [
        ("awq", ["model.quantization=int8"], CPU, r"model.quantization is int8: .*\(awq\); write auto, or none"),
        ("awq", ["model.dtype=float16"], CPU, "model.dtype must be float32 or bfloat16: .*none widens it"),
        ("awq", [], Machine("gpu", "gpu", 2, None), "2 devices cannot share weights of 4 bits"),
    ],
)
def test_what_a_quantised_checkpoint_cannot_be_is_refused(form, overrides, machine, told, tmp_path):
    write_folder(tmp_path, form)
    with pytest.raises(ConfigError, match=told):
        choose(tmp_path, *overrides, machine=machine)


def test_a_bundle_is_of_one_set_of_quantised_weights(tmp_path):
    write_folder(tmp_path / "awq", "awq")
    write_folder(tmp_path / "fewer", "awq", plain=("lm_head", "model.embed_tokens", "model.layers.0.mlp.up_proj"))
    every, fewer = (replace(SHAPES, quantization=choose(tmp_path / name)[0]) for name in ("awq", "fewer"))
    save_bundle(tmp_path / "bundle", manifest_of(every, SHARDING), {})
    [told] = differences(read_manifest(tmp_path / "bundle"), manifest_of(fewer, SHARDING))
    assert re.fullmatch(r"shapes.quantization.formats is '\w{16}', here it is '\w{16}'", told)
    config = load_config(None, [f"compile.bundle={tmp_path / 'bundle'}"])
    assert adopted(config, SilentReporter()).model.quantization == "auto"  # the checkpoint says what it is
