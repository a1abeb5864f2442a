"""The measure of accuracy, against transformers' recordings of a tiny model; and int8 on a real one by it."""

import math

import numpy as np
import pytest

from benchmarks.accuracy import ROOT, Agreement, agreement, perplexity
from tests import tiny_models
from tests.engine.test_end_to_end import start
from xlaserve.engine.llm import LLM


@pytest.fixture(scope="module")
def tiny(cache_dir):
    with start("llama", cache_dir) as llm:
        yield llm


def test_perplexity_is_that_of_recorded_logprobs(tiny):
    prompt, exact = tiny_models.logprobs("llama")
    expected = math.exp(-np.mean([exact[position][token] for position, token in enumerate(prompt[1:])]))
    assert perplexity(tiny, prompt) == pytest.approx(expected, rel=1e-4)


def test_agreement_counts_likeliest_tokens_and_finds_the_widest_gap(tiny):
    (answer,) = tiny_models.greedy("llama", [17])
    case = {"prompt_ids": tiny_models.prompt(17), "output_ids": answer}
    steps = [{"id": token, "logprob": -0.5, "top": [[token, -0.5]]} for token in answer]
    assert agreement(tiny, [case | {"steps": steps}]) == Agreement(20, 20, 0.0)
    other = (answer[-1] + 1) % 256  # at the end: no later token depends on it
    changed = case | {"output_ids": [*answer[:-1], other]}
    steps[-1] = {"id": other, "logprob": -0.5, "top": [[other, -0.5], [answer[-1], -0.75]]}
    assert agreement(tiny, [changed | {"steps": steps}]) == Agreement(19, 20, 0.25)
    steps[-1]["top"].pop()
    assert agreement(tiny, [changed | {"steps": steps}]).widest_gap == math.inf


@pytest.mark.models
def test_int8_costs_smollm2_less_than_a_fiftieth_of_its_perplexity(demo_gguf, cache_dir):
    limits = ["model.max_model_len=257", "scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=32"]
    found = {}
    for quantization in ("none", "int8"):
        overrides = [*limits, "model.dtype=bfloat16", f"model.quantization={quantization}"]
        with LLM(str(demo_gguf), overrides=overrides, cache_dir=cache_dir) as llm:
            found[quantization] = perplexity(llm, llm.tokenizer.encode((ROOT / "LICENSE").read_text())[:256])
    assert found["int8"] < 1.02 * found["none"], found
