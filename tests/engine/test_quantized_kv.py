"""KV pools in int8 and fp8: what the engine computes over them, and that nothing else about them makes a difference."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import SMALL_BLOCKS, greedy, ids, start
from tests.engine.test_prompt_logprobs import scoring
from tests.engine.test_swap_models import admin
from tests.plain_llama import plain_logprobs, rounded_vectors
from tests.runner.test_bundle import SHAPES, SHARDING
from xlaserve.config import load_config
from xlaserve.engine import host_tier
from xlaserve.engine.bundled import adopted
from xlaserve.engine.completion import Completion
from xlaserve.engine.llm import LLM
from xlaserve.engine.reporter import SilentReporter
from xlaserve.errors import ConfigError
from xlaserve.runner.bundle import save_bundle
from xlaserve.runner.compilations import LOG
from xlaserve.runner.dtype import named_dtype
from xlaserve.runner.manifest import manifest_of
from xlaserve.sampling_params import SamplingParams

# Nats, by which these models' logprobs differ from those over float32 at most: as they are random, and have heads of 8
# and 16 numbers, it is more than of real ones.
FARTHEST = {"int8": 0.1, "fp8": 0.5}


@pytest.fixture(scope="module", params=FARTHEST)
def llama(request, cache_dir) -> Iterator[tuple[str, LLM]]:
    with start("llama", cache_dir, cache__dtype=request.param) as llm:
        yield request.param, llm


def logprobs_of(completion: Completion) -> np.ndarray:
    """Of the prompt but its first token, and of the answer."""
    told = [*(completion.prompt_tokens or ())[1:], *(completion.logprobs or ())]
    return np.array([token.logprob for token in told])


def picked(logprobs: np.ndarray, prompt: list[int]) -> np.ndarray:
    """Of each token but the first, from rows [T, V] of what comes behind each token."""
    return logprobs[np.arange(len(prompt) - 1), prompt[1:]]


def test_logprobs_are_those_of_a_plain_model_that_rounds_keys_and_values(llama):
    dtype, llm = llama
    config, tensors = tiny_models.read("llama")
    prompt, exact = tiny_models.logprobs("llama")
    np.testing.assert_allclose(plain_logprobs(config, tensors, prompt), exact, atol=1e-4)  # it is right without
    found = logprobs_of(llm.generate([prompt], scoring(0))[0])
    rounded = plain_logprobs(config, tensors, prompt, rounded_kv=rounded_vectors(dtype))
    np.testing.assert_allclose(found, picked(rounded, prompt), atol=1e-4)
    assert 0.01 < np.abs(found - picked(exact, prompt)).max() < FARTHEST[dtype]


def test_ids_are_transformers_until_two_tokens_are_about_as_likely(llama):
    dtype, llm = llama
    config, tensors = tiny_models.read("llama")
    lengths = (1, 15, 17, 33)
    expected = tiny_models.greedy("llama", lengths)
    for prompt, mine, theirs in zip(
        tiny_models.prompts(lengths), ids(llm.generate(tiny_models.prompts(lengths), greedy())), expected, strict=True
    ):
        if mine != theirs:
            same = next(n for n in range(len(mine)) if mine[n] != theirs[n])
            last = plain_logprobs(config, tensors, prompt + theirs[:same])[-1]
            assert last[theirs[same]] - last[mine[same]] < 2 * FARTHEST[dtype]


@pytest.mark.parametrize("level", [1, 2])
def test_a_model_that_has_slept_says_what_it_said(llama, level):
    _, llm = llama
    asked = [tiny_models.prompt(40), tiny_models.prompt(17)], scoring(0, max_tokens=6)
    before, compiled = llm.generate(*asked), LOG.compiled()
    admin(llm.service).sleep(level, 10.0)
    admin(llm.service).wake()
    for one, other in zip(before, llm.generate(*asked), strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(logprobs_of(one), logprobs_of(other), atol=1e-5)
    assert LOG.compiled() == compiled


@pytest.mark.parametrize(("name", "dtype"), [("llama", "fp8"), ("gemma3", "int8")])
def test_shared_blocks_copies_preemption_and_the_host_change_nothing(name, dtype, cache_dir, monkeypatch):
    """Scales travel with their blocks: else a token would be read with another's."""
    monkeypatch.setattr(host_tier, "START_SECONDS", 0.0)  # no prefix of a tiny model is long enough to pay
    monkeypatch.setitem(host_tier.RATES, "cpu", host_tier.Rates(link_bytes=1e12, operations=1e9))
    base = tiny_models.prompt(251)
    asked = [base[:24], base[:24], base[:25], base[:17], [*base[:22], 5, 6], base[:40], [*base[:40], 7]]
    params = [
        SamplingParams(max_tokens=20, temperature=float(number % 2), seed=number, n=1 + number % 3, logprobs=0)
        for number in range(len(asked))
    ]
    with start(name, cache_dir, cache__dtype=dtype, cache__prefix_caching="false") as llm:
        alone = [each for prompt, one in zip(asked, params, strict=True) for each in llm.generate([prompt], one)]
    with start(name, cache_dir, cache__dtype=dtype, **SMALL_BLOCKS, cache__host_memory="4MiB") as llm:
        for _ in range(2):
            found = llm.generate(asked, params)
            assert ids(found) == ids(alone)
            for one, other in zip(alone, found, strict=True):
                # A sum of another batch may round a key or value to the neighbouring number of 8 bits.
                np.testing.assert_allclose(logprobs_of(one), logprobs_of(other), atol=1e-3)
            llm.generate([[7] * 60], greedy(4))
        scheduler = llm.service._scheduler
        assert min(scheduler.num_preemptions, scheduler.num_forks, scheduler.prefix_hits) > 0
        assert llm.service.stats()["restores"] > 0


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_a_bundles_kv_dtype_is_taken_where_none_is_said(tmp_path, dtype):
    shapes = replace(SHAPES, kv_dtype=named_dtype("fp8"))
    save_bundle(tmp_path / "bundle", manifest_of(shapes, SHARDING), {})
    config = load_config(None, [f"compile.bundle={tmp_path / 'bundle'}", f"cache.dtype={dtype}"])
    assert adopted(config, SilentReporter()).cache.dtype == ("fp8" if dtype == "auto" else dtype)


def test_what_a_backend_cannot_take_is_refused_at_start(cache_dir):
    with pytest.raises(ConfigError, match=r"cache.dtype, .*block_size 24: on TPUs it must be a power of two with int8"):
        start("llama", cache_dir, kernels__attention_backend="pallas_tpu_interpret", cache__block_size=24,
              cache__dtype="int8")  # fmt: skip
