"""The measure of accuracy, against transformers' recordings of a tiny model."""

import math

import numpy as np
import pytest

from benchmarks.accuracy import Agreement, agreement, perplexity
from tests import tiny_models
from tests.engine.test_end_to_end import start


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
