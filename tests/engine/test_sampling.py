"""Sampling parameters through the whole engine, on a tiny model: alone, in any batch, after preemption, in forks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import FEW_BLOCKS, ids, start
from tests.tiny_models import prompts
from xlaserve.engine.llm import LLM
from xlaserve.sampling_params import SamplingParams

PROMPT = tiny_models.prompt(20)
TOKENS = 24


@pytest.fixture(scope="module")
def llama(cache_dir) -> Iterator[LLM]:
    with start("llama", cache_dir) as llm:
        yield llm


def ask(llm: LLM, prompt=PROMPT, **params) -> list[int]:
    return ids(llm.generate([prompt], SamplingParams(**{"max_tokens": TOKENS, "temperature": 0.0} | params)))[0]


def mixed(greedy: list[int]) -> list[SamplingParams]:
    asked: list[dict[str, Any]] = [
        {"repetition_penalty": 2.0},
        {"seed": 99, "top_k": 1, "temperature": 1.0},
        {"logit_bias": {greedy[0]: -100, 7: 3.5}, "logprobs": 3},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "seed": 3, "temperature": 1.0},
        {"min_tokens": 12, "stop_token_ids": tuple(greedy[3:6]), "logprobs": 0},
        {"allowed_token_ids": tuple(range(5, 60)), "seed": 4, "temperature": 1.0, "min_p": 0.05},
        {},
        {"repetition_penalty": 1.3, "seed": 5, "temperature": 0.8, "top_p": 0.9, "n": 3},
    ]
    return [SamplingParams(**{"max_tokens": TOKENS, "temperature": 0.0} | params) for params in asked]


@pytest.mark.parametrize("limits", [{}, {"scheduler__async_scheduling": "false"}, FEW_BLOCKS], ids=str)
def test_report_32_each_request_of_a_mixed_batch_is_as_alone(limits, llama, cache_dir):
    """In both orders, with forks, and when blocks run out."""
    params = mixed(ask(llama))
    asked = [PROMPT[: 13 + number] for number in range(len(params))]
    alone = [llama.generate([prompt], one) for prompt, one in zip(asked, params, strict=True)]
    assert len({tuple(output) for outputs in alone for output in ids(outputs)}) == 10
    with start("llama", cache_dir, **limits) as llm:
        for order in (1, -1):
            together = llm.generate(asked[::order], params[::order])
            expected = [completion for outputs in alone[::order] for completion in outputs]
            assert ids(together) == ids(expected)
            for one, other in zip(together, expected, strict=True):
                found = [entry.logprob for entry in one.logprobs or ()]
                assert found == pytest.approx([entry.logprob for entry in other.logprobs or ()], abs=1e-4)
        assert (llm.service.stats()["preemptions"] > 0) == (limits is FEW_BLOCKS)


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.8}, {"frequency_penalty": 1.2}, {"presence_penalty": 1.1}], ids=str
)
def test_each_token_is_the_one_that_what_came_before_it_asks_for(penalty, llama):
    """The device's counts of a running request against a new request per token, which knows all tokens beforehand."""
    found = ask(llama, **penalty)
    assert found != ask(llama)
    for count, token in enumerate(found):
        output = found[:count]
        rules = penalty
        if "repetition_penalty" not in penalty:
            (amount,) = penalty.values()
            times = {token: (output.count(token) if "frequency_penalty" in penalty else 1) for token in output}
            rules = {"logit_bias": {token: -amount * number for token, number in times.items()}}
        assert ask(llama, [*PROMPT, *output], max_tokens=1, **rules) == [token]


def test_report_31_presence_changes_nothing_in_the_first_step(llama):
    repeated = [ask(llama)[0]] * 9
    assert ask(llama, repeated, max_tokens=1, presence_penalty=2.0) == ask(llama, repeated, max_tokens=1)


def test_report_26_seeds(llama):
    sampled = {"temperature": 1.0}
    alone = [ask(llama, seed=seed, **sampled) for seed in (42, 42, 0, 0)]
    assert alone[0] == alone[1] != alone[2] == alone[3]
    for place in (0, 7):
        params = [SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=seed) for seed in range(8)]
        params[place] = SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=42)
        assert ids(llama.generate([PROMPT] * 8, params))[place] == alone[0]
    assert len({tuple(ask(llama, **sampled)) for _ in range(5)}) == 5


@pytest.mark.parametrize("seed", [1, None])
def test_report_27_choices(seed, llama):
    params = SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=seed, n=4)
    first, second = (ids(llama.generate([PROMPT], params)) for _ in range(2))
    assert len(set(map(tuple, first))) == 4
    assert (first == second) == (seed is not None)
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0, seed=seed, n=4)
    assert ids(llama.generate([PROMPT], greedy)) == [ask(llama)] * 4


def test_report_29_top_k_off_and_greedy(llama):
    sampled = {"temperature": 1.0, "seed": 8}
    free = ask(llama, **sampled)
    for off in (-1, 0, 256, 257, 10**9):
        assert ask(llama, top_k=off, **sampled) == free
    assert ask(llama, top_k=1, **sampled) == ask(llama) != free


def test_report_25_logprobs_are_the_models_own(llama):
    """Recorded by transformers: no parameter changes them."""
    logits = tiny_models.logits("llama", [17])[0][-1].astype("float64")
    exact = logits - logits.max()
    exact -= np.log(np.exp(exact).sum())
    for options in (
        {"temperature": 0.2, "seed": 1}, {"temperature": 2.0, "seed": 2}, {"presence_penalty": 2.0},
        {"temperature": 1.0, "top_k": 2}, {"repetition_penalty": 2.0}, {"logit_bias": {3: 100}},
        {"allowed_token_ids": (5,)},
    ):  # fmt: skip
        asked: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "logprobs": 5} | options
        (completion,) = llama.generate([tiny_models.prompt(17)], SamplingParams(**asked))
        assert completion.logprobs
        entry = completion.logprobs[0]
        assert entry.logprob == pytest.approx(exact[completion.token_ids[0]], abs=1e-4)
        assert [logprob for *_, logprob in entry.top] == pytest.approx(sorted(exact)[:-6:-1], abs=1e-4)


def test_allowed_and_biased_tokens(llama):
    assert set(ask(llama, allowed_token_ids=(4, 9))) <= {4, 9}
    assert ask(llama, logit_bias={11: 100}) == [11] * TOKENS
    greedy = ask(llama)
    assert greedy[0] not in ask(llama, logit_bias={greedy[0]: -100})


def test_report_33_min_tokens_with_every_eos_forced(cache_dir, llama):
    for eos in (3, 200):
        stops = {"stop_token_ids": (3, 200), "logit_bias": {eos: 100}}
        found = ask(llama, min_tokens=4, **stops)
        assert len(found) == 5
        assert found[-1] == eos
        assert not {3, 200} & set(found[:4])
        assert ask(llama, **stops) == [eos]
    assert len(prompts((20,))[0]) > 4


def test_processed_logprobs_are_of_what_is_drawn_from(cache_dir):
    with start("llama", cache_dir, model__logprobs_mode="processed") as llm:
        for options in ({"allowed_token_ids": (5,), "temperature": 0.0}, {"top_k": 1, "temperature": 1.3}):
            asked: dict[str, Any] = {"max_tokens": 3, "logprobs": 2} | options
            (completion,) = llm.generate([PROMPT], SamplingParams(**asked))
            assert completion.logprobs
            for entry in completion.logprobs:
                assert entry.logprob == pytest.approx(0.0, abs=1e-6)
                assert entry.top[1][-1] == float("-inf")
        params = SamplingParams(max_tokens=1, logprobs=2, temperature=0.0, logit_bias={3: 100, 4: 99})
        (completion,) = llm.generate([PROMPT], params)
        assert completion.logprobs
        assert completion.logprobs[0].logprob > -0.5
