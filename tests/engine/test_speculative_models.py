"""Prompt lookup through the whole engine, on tiny models: tokens and logprobs are those without."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import ids
from tests.tiny_models import GREEDY_TOKENS, LENGTHS, prompts
from tests.toy_drafts import Eager, FreeCosts
from tests.toys import write_tokenizer
from xlaserve.core.ngram import NgramProposer
from xlaserve.engine.llm import LLM
from xlaserve.engine.vocabulary import byte_vocabulary
from xlaserve.grammar import Grammar
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import BeamSearchParams, SamplingParams

K = 4
ON = {"speculative.method": "ngram", "speculative.num_speculative_tokens": K}
TOKENS = 24
EOS = 4
LETTERS = {"allowed_token_ids": (*b" abc",)}
REPETITIVE = [*b"a b c a b c a b c a b c "]
FEW_BLOCKS = {"cache.num_blocks": 5, "model.max_model_len": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A llama whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(tiny_models.folder("llama"), folder, dirs_exist_ok=True)
    write_tokenizer(byte_vocabulary(), folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": EOS}))
    return folder


class Faulty(NgramProposer):
    """Some of what it has looked up is wrong. foretold: outputs by prompt and choice, which it knows beforehand."""

    foretold: Mapping[tuple[tuple[int, ...], int], list[int]] = MappingProxyType({})

    def propose(self, request):
        length = len(request.token_ids)
        output = self.foretold.get((tuple(request.prompt_ids), request.choice_index))
        found = super().propose(request) if output is None else output[request.num_output_tokens :][: K + 1]
        return [(token + ((length + place) % 7 == 0)) % 256 for place, token in enumerate(found)]


@contextmanager
def started(folder: Path, cache_dir: Path, settings: dict[str, Any]) -> Iterator[LLM]:
    """With drafts whenever there are some, whether they pay or not: of ends of one token, so that many are wrong."""
    small = {"model.dtype": "float32", "model.max_model_len": 128, "scheduler.max_num_seqs": 4}
    chosen = small | {"scheduler.max_num_batched_tokens": 8} | settings
    with LLM(str(folder), overrides=[f"{k}={v}" for k, v in chosen.items()], cache_dir=cache_dir) as llm:
        if "speculative.method" in chosen:
            scheduler_of(llm).speculation = Eager(Faulty(K, 1, 3), FreeCosts((4, 8)), K)
        yield llm


def scheduler_of(llm: LLM):
    return llm.service._loop._engine.scheduler


def counts_of(llm: LLM):
    return scheduler_of(llm).speculation.counts


@pytest.fixture(scope="module")
def off(folder, cache_dir) -> Iterator[LLM]:
    with started(folder, cache_dir, {}) as llm:
        yield llm


@pytest.fixture(scope="module")
def on(folder, cache_dir) -> Iterator[LLM]:
    with started(folder, cache_dir, ON) as llm:
        yield llm


def params(greedy: list[int], letters: str) -> list[SamplingParams]:
    """greedy: the output without any; letters: the text of just these."""
    asked: list[dict[str, Any]] = [
        {},
        {"logprobs": 1, "max_tokens": 7},
        {"repetition_penalty": 1.3, "logprobs": 0},
        {"frequency_penalty": 0.4, "presence_penalty": 0.2, "seed": 3, "temperature": 0.7, "logprobs": 3},
        {"seed": 99, "top_k": 3, "temperature": 0.5, "logprobs": 2},
        {"seed": 5, "temperature": 0.6, "top_p": 0.8, "n": 3, "logprobs": 1},
        {"min_tokens": 12, "stop_token_ids": tuple(greedy[3:6]), "logprobs": 0},
        {"stop_token_ids": (greedy[-1],)},
        {"stop": (letters[10:13],), "logprobs": 1, **LETTERS},
        {"bad_words": (letters[5:7], "c"), "logprobs": 1, **LETTERS},
        {"grammar": Grammar("regex", "([abc] )+"), "logprobs": 1},
        {"grammar": Grammar("regex", "(abcdef |xyz)+"), "seed": 4, "temperature": 1.0},
        {"allowed_token_ids": tuple(range(97, 104)), "seed": 4, "temperature": 1.0, "min_p": 0.05},
        {"logit_bias": {97: 3.0, 98: 3.1, 32: 2.9}, "logprobs": 2},
        {"max_tokens": 1, "prompt_logprobs": 2},
    ]
    return [SamplingParams(**{"max_tokens": TOKENS, "temperature": 0.0} | each) for each in asked]


def assert_alike(found, expected) -> None:
    assert ids(found) == ids(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.text, one.finish_reason, one.stop_reason) == (other.text, other.finish_reason, other.stop_reason)
        assert (one.logprobs is None) == (other.logprobs is None)
        for mine, its in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-4)
            assert [i for i, *_ in mine.top] == [i for i, *_ in its.top]
            assert [each[-1] for each in mine.top] == pytest.approx([each[-1] for each in its.top], abs=1e-4)


@pytest.mark.parametrize("max_tokens", [1, 7, 24])
def test_report_52_ngram_drafts_change_neither_ids_nor_logprobs(max_tokens, on, off):
    """Alone and greedy, as reported."""
    asked = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=1)
    found, expected = on.generate([REPETITIVE], asked), off.generate([REPETITIVE], asked)
    assert_alike(found, expected)
    assert len(found[0].token_ids) == max_tokens
    assert all(entry.logprob != 0 for entry in found[0].logprobs)


@pytest.mark.parametrize("limits", [{}, FEW_BLOCKS, {"scheduler.async_scheduling": "false"}], ids=str)
def test_report_52_all_parameters_are_applied_to_drafts(limits, on, off, folder, cache_dir):
    """Each alone, and all in one batch, with forks, and when blocks run out."""
    (greedy,) = ids(off.generate([REPETITIVE], SamplingParams(max_tokens=TOKENS, temperature=0.0)))
    (lettered,) = off.generate([REPETITIVE], SamplingParams(max_tokens=TOKENS, temperature=0.0, **LETTERS))
    asked = params(greedy, lettered.text)
    texts = [[*REPETITIVE, 65 + number] for number in range(len(asked))]
    each = [off.generate([text], one) for text, one in zip(texts, asked, strict=True)]
    expected = [completion for answers in each for completion in answers]
    foretold = {
        (tuple(text), i): a.token_ids for text, answers in zip(texts, each, strict=True) for i, a in enumerate(answers)
    }
    with started(folder, cache_dir, ON | limits) if limits else nullcontext(on) as llm:
        scheduler = scheduler_of(llm)
        scheduler.speculation._proposer.foretold = foretold
        assert_alike(llm.generate(texts, asked), expected)
        assert (scheduler.num_preemptions > 0) == (limits is FEW_BLOCKS)
        counts = scheduler.speculation.counts
        assert 80 < sum(counts.num_accepted) < counts.num_tokens - 20
        assert all(counts.num_accepted)
        alone = [completion for text, one in zip(texts, asked, strict=True) for completion in llm.generate([text], one)]
        assert_alike(alone, expected)


def test_ids_equal_generate_in_layers_with_windows(cache_dir):
    """Drafts that are not right are written to blocks, too, which windows pass."""
    expected = tiny_models.greedy("gemma3", LENGTHS)
    with started(tiny_models.folder("gemma3"), cache_dir, ON | {"cache.block_size": 4}) as llm:
        asked = SamplingParams(max_tokens=GREEDY_TOKENS, temperature=0.0)
        assert ids(llm.generate(prompts(LENGTHS), asked)) == expected
        assert ids(llm.generate(prompts(LENGTHS), asked)) == expected, "with what is cached"
        counts = counts_of(llm)
        assert 0 < sum(counts.num_accepted) < counts.num_tokens


def test_nothing_compiles_after_start_whatever_is_drafted(on):
    before, hits = LOG.compiled(), LOG.cache_hits()
    for size in range(1, 5):
        asked = [{"temperature": float(row % 2), "presence_penalty": float(row == 3)} for row in range(size)]
        on.generate([REPETITIVE] * size, [SamplingParams(max_tokens=20, seed=1, **each) for each in asked])
    assert (LOG.compiled(), LOG.cache_hits()) == (before, hits)
    assert sorted({size for size, _ in on.service._loop._engine._runner.programs.samples}) == [4, 8]


def test_beams_have_no_drafts(on, off):
    before = counts_of(on).num_drafts
    asked = BeamSearchParams(n=3, max_tokens=8)
    assert ids(*on.beam_search([REPETITIVE], asked)) == ids(*off.beam_search([REPETITIVE], asked))
    assert counts_of(on).num_drafts == before
