"""Prompt logprobs of random tiny models equal transformers' log_softmax, whatever the chunks, batch and cache."""

import numpy as np
import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import start
from xlaserve.engine.completion import Completion
from xlaserve.engine.llm import LLM
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams

BLOCK = 16
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1)


def expect_transformers(name: str, completion: Completion, num_top: int) -> None:
    prompt, exact = tiny_models.logprobs(name)
    tokens = completion.prompt_tokens
    assert tokens is not None
    assert [token.token_id for token in tokens] == completion.prompt_ids == prompt[: len(tokens)]
    assert (tokens[0].logprob, tokens[0].rank, tokens[0].top) == (None, None, ())
    for position, token in enumerate(tokens[1:]):
        row = exact[position]
        assert token.logprob == pytest.approx(row[token.token_id], abs=1e-4)
        assert token.rank is not None
        likelier = (row > row[token.token_id] + 1e-4).sum(), (row >= row[token.token_id] - 1e-4).sum()
        assert 1 + likelier[0] <= token.rank <= likelier[1]
        np.testing.assert_allclose([logprob for *_, logprob in token.top], -np.sort(-row)[:num_top], atol=1e-4)
        for token_id, text, logprob in token.top:
            assert logprob == pytest.approx(row[token_id], abs=1e-4)
            assert isinstance(text, str)


def scoring(num_top: int, max_tokens: int = 0) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, prompt_logprobs=num_top)


def beginnings(name: str) -> list[list[int]]:
    return [tiny_models.logprobs(name)[0][:length] for length in LENGTHS]


@pytest.fixture(scope="module", params=[3, 8, 64], ids="chunks of {}".format)
def llama(request, cache_dir):
    with start("llama", cache_dir, scheduler__max_num_batched_tokens=request.param) as llm:
        yield llm


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_report_21_prompt_logprobs_twice_and_after_a_cached_prefix(llama: LLM, max_tokens):
    """Alone, again with all of it cached, and after a prompt that shares a block."""
    before = LOG.compiled()
    expected = tiny_models.greedy("llama", LENGTHS[:4])
    for prompt, answer in zip(beginnings("llama"), [*expected, None], strict=True):
        llama.generate([[*prompt[:BLOCK], 3, 4, 5]], SamplingParams(max_tokens=1))
        for _ in range(2):
            (completion,) = llama.generate([prompt], scoring(5, max_tokens))
            expect_transformers("llama", completion, 5)
            assert len(completion.token_ids) == max_tokens
            assert completion.finish_reason == "length"
            if len(prompt) in (1, 15, 16, 17) and tiny_models.prompt(len(prompt)) == prompt and answer:
                assert completion.token_ids == answer[:max_tokens]
    assert LOG.compiled() == before


def test_beside_others_that_ask_for_nothing(llama: LLM):
    prompts = beginnings("llama")
    params = [scoring(number, max_tokens=number % 3) for number in range(5)]
    plain = SamplingParams(max_tokens=20, temperature=0.0)
    lengths = (15, 16, 17)
    completions = llama.generate([*prompts, *tiny_models.prompts(lengths)], [*params, *([plain] * len(lengths))])
    for number, completion in enumerate(completions[:5]):
        expect_transformers("llama", completion, number)
    assert [completion.token_ids for completion in completions[5:]] == tiny_models.greedy("llama", lengths)
    assert all(completion.prompt_tokens is None for completion in completions[5:])


@pytest.mark.parametrize("name", ["gemma3-softcap", "mistral-window"])
def test_windows_softcaps_and_preemptions(name, cache_dir):
    """A pool of small blocks in which the requests are preempted, some while they are read."""
    few = {"cache__block_size": 4, "cache__num_blocks": 20, "model__max_model_len": 76}
    with start(name, cache_dir, **few) as llm:
        prompts = [tiny_models.logprobs(name)[0][:length] for length in (40, 33, 38, 40, 17)]
        for completion in llm.generate(prompts, scoring(20, max_tokens=20)):
            expect_transformers(name, completion, 20)
        assert (llm.service.stats()["preemptions"] > 0) == (name != "mistral-window")  # whose layers all let blocks go


def test_the_answers_to_one_prompt_have_the_same(llama: LLM):
    (prompt,) = beginnings("llama")[-1:]
    completions = llama.generate(
        [prompt], SamplingParams(n=3, max_tokens=3, temperature=1.0, seed=1, prompt_logprobs=2)
    )
    assert len(completions) == 3
    for completion in completions:
        expect_transformers("llama", completion, 2)
