"""The whole engine on random tiny models: ids equal transformers' generate() whatever the batch, chunk and pool."""

from collections.abc import Iterator

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny_models
from tests.tiny_models import GREEDY_TOKENS, LENGTHS, prompts
from xlaserve.engine import host_tier
from xlaserve.engine.llm import LLM
from xlaserve.errors import ConfigError
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams


def start(name: str, cache_dir, **settings) -> LLM:
    chosen = {"model__dtype": "float32", "model__max_model_len": 128, "scheduler__max_num_seqs": 4} | settings
    chosen = {
        "scheduler__max_num_batched_tokens": 8
    } | chosen  # few programs to compile; the larger ones are tested too
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in chosen.items()]
    return LLM(str(tiny_models.folder(name)), overrides=overrides, cache_dir=cache_dir)


@pytest.fixture(scope="module")
def llama(cache_dir) -> Iterator[LLM]:
    with start("llama", cache_dir) as llm:
        yield llm


def greedy(num_tokens: int = GREEDY_TOKENS) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0.0)


def runner_of(llm: LLM):
    return llm.service._loop._engine._runner


def ids(completions) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize("name", tiny_models.GREEDY)
def test_greedy_ids_equal_generate(name, cache_dir):
    expected = tiny_models.greedy(name, LENGTHS)
    with start(name, cache_dir) as llm:
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == expected
        assert [ids(llm.generate([prompt], greedy()))[0] for prompt in prompts(LENGTHS)] == expected


CHUNKS_OF_3 = {"scheduler__max_num_batched_tokens": 3}
CHUNKS_OF_17 = {"scheduler__max_num_batched_tokens": 17, "scheduler__max_num_seqs": 7}
FEW_BLOCKS = {"cache__num_blocks": 6, "model__max_model_len": 80}
SMALL_BLOCKS = {"cache__block_size": 4, "cache__num_blocks": 20, "model__max_model_len": 76}


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("llama", CHUNKS_OF_3),
        ("llama", CHUNKS_OF_17),
        ("llama", {"scheduler__max_num_batched_tokens": 64}),
        ("llama", SMALL_BLOCKS),
        ("llama", FEW_BLOCKS),
        ("llama", {"scheduler__async_scheduling": "false"}),
        ("gemma3", CHUNKS_OF_3),
        ("gemma3", CHUNKS_OF_17),
        ("gemma3", SMALL_BLOCKS),
    ],
    ids=str,
)
def test_limits_do_not_change_the_text(name, limits, cache_dir):
    lengths = (*LENGTHS, 33, 2, 31)
    with start(name, cache_dir, **limits) as llm:
        assert ids(llm.generate(prompts(lengths), greedy())) == tiny_models.greedy(name, lengths)
        preemptions = llm.service.stats()["preemptions"]
        assert (preemptions > 0) == ("cache__num_blocks" in limits)


def test_seeded_sampling_is_the_same_alone_in_a_batch_and_after_preemption(llama, cache_dir):
    several = prompts((17, 40, 33, 2))
    params = [SamplingParams(max_tokens=30, temperature=1.0, top_p=0.9, seed=seed) for seed in (0, 42, -7, 2**62)]
    alone = [ids(llama.generate([prompt], one))[0] for prompt, one in zip(several, params, strict=True)]
    assert ids(llama.generate(several, params)) == alone
    with start("llama", cache_dir, **FEW_BLOCKS) as llm:
        assert ids(llm.generate(several, params)) == alone
        assert llm.service.stats()["preemptions"] > 0


def test_unseeded_requests_differ(llama):
    outputs = ids(llama.generate([[1, 2, 3]] * 5, SamplingParams(max_tokens=20, temperature=1.0)))
    assert len({tuple(output) for output in outputs}) == 5


def test_nothing_compiles_after_start(cache_dir):
    """Over batch sizes, prompt lengths, logprobs and sampling, with limits that are no power of two."""
    unexpected = LOG.compiled().get("unexpected", 0)  # by other tests of this process
    with start("llama", cache_dir, scheduler__max_num_batched_tokens=31, scheduler__max_num_seqs=7) as llm:
        before, hits = LOG.compiled(), LOG.cache_hits()

        @settings(max_examples=25, deadline=None, derandomize=True)
        @given(
            lengths=st.lists(st.integers(1, 100), min_size=1, max_size=9),
            temperature=st.sampled_from([0.0, 1.0]),
            top_k=st.sampled_from([0, 3, 200]),
            top_p=st.sampled_from([1.0, 0.5]),
            logprobs=st.sampled_from([None, 0, 5]),
            prompt_logprobs=st.sampled_from([None, 3]),
            rules=st.sampled_from(
                [
                    {},
                    {"min_p": 0.1, "n": 3},
                    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
                    {"logit_bias": {5: 2.0}, "allowed_token_ids": (3, 4, 5, 6), "min_tokens": 2},
                ]
            ),
        )
        def traffic(lengths, rules, **asked):
            params = SamplingParams(max_tokens=5, **asked, **rules)
            beginnings = [tiny_models.prompt(251)[:length] for length in lengths]
            assert all(len(output) == 5 for output in ids(llm.generate(beginnings, params)))
            llm.embed(beginnings)

        traffic()
        assert (LOG.compiled(), LOG.cache_hits()) == (before, hits)
        assert before.get("unexpected", 0) == unexpected


@pytest.mark.parametrize("kind", ["body", "sample"])
def test_a_step_that_fails_loses_no_request(kind, llama, monkeypatch):
    """The failing step has taken the donated pools with it: they are made anew, and the requests recomputed."""
    several = prompts(LENGTHS)
    expected = ids(llama.generate(several, greedy()))
    runner = runner_of(llama)
    programs, calls = runner.programs, iter(range(10**6))
    table = programs.bodies if kind == "body" else programs.samples

    def failing(compiled):
        def call(*arguments):
            outputs = compiled(*arguments)  # donates
            if next(calls) == 8:
                raise RuntimeError("injected")
            return outputs

        return call

    for key, compiled in table.items():
        monkeypatch.setitem(table, key, failing(compiled))
    assert ids(llama.generate(several, greedy())) == expected
    assert next(calls) > 9
    assert ids(llama.generate(several, greedy())) == expected


def test_report_96_pools_are_donated_and_rebound(llama):
    runner = runner_of(llama)
    old_pools = jax.tree.leaves(runner._kv_caches)
    llama.generate([[1, 2, 3]], greedy(2))
    assert all(pool.is_deleted() for pool in old_pools)
    assert not any(pool.is_deleted() for pool in jax.tree.leaves(runner._kv_caches))
    with pytest.raises(RuntimeError, match=r"deleted|donated"):
        jax.block_until_ready(old_pools[0] + 1)


def test_a_context_longer_than_the_models_is_refused_at_start(cache_dir):
    with pytest.raises(ConfigError, match=r"model.max_model_len is 1024: the model's context is 512"):
        start("llama", cache_dir, model__max_model_len=1024)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(("llama", "pallas_gpu_interpret"), ("gemma3", "pallas_gpu_interpret"), ("gemma3", "pallas_tpu_interpret")),
        *(("llama", "xla"), ("gemma3", "xla")),
    ],
)
def test_other_backends_than_the_default_give_the_same_text(name, backend, cache_dir):
    lengths, num_tokens = (1, 17), 6  # every copy of a block is simulated, and every program is compiled anew
    expected = tiny_models.greedy(name, lengths, num_tokens)
    limits = {"scheduler__max_num_seqs": 2, "scheduler__max_num_batched_tokens": 4}
    with start(name, cache_dir, kernels__attention_backend=backend, **limits) as llm:
        assert ids(llm.generate(tiny_models.prompts(lengths), greedy(num_tokens))) == expected


def test_a_block_size_that_the_kernel_cannot_take_is_refused_at_start(cache_dir):
    with pytest.raises(ConfigError, match=r"cache.block_size, .*: block_size 24: .* must be a power of two"):
        start("llama", cache_dir, kernels__attention_backend="pallas_gpu_interpret", cache__block_size=24)


def test_an_unknown_backend_is_refused_with_the_choices(cache_dir):
    with pytest.raises(ConfigError, match=r"kernels.attention_backend: .*choose auto, xla"):
        start("llama", cache_dir, kernels__attention_backend="triton")


@pytest.mark.parametrize(("name", "num_blocks"), [("llama", 24), ("gemma3", 24), ("mistral-window", 12)])
def test_shared_blocks_change_nothing(name, num_blocks, cache_dir):
    """Prompts that begin alike, after each other, together and with several answers, in a pool that is too small."""
    base = tiny_models.prompt(251)
    asked = [base[:24], base[:24], base[:25], base[:17], [*base[:22], 5, 6], base[:40], [*base[:40], 7]]
    params = [
        SamplingParams(max_tokens=20, temperature=float(number % 2), seed=number, n=1 + number % 3)
        for number in range(len(asked))
    ]
    with start(name, cache_dir, cache__prefix_caching="false") as llm:
        alone = [ids(llm.generate([prompt], one)) for prompt, one in zip(asked, params, strict=True)]
        assert llm.service.stats()["preemptions"] == 0
    pool = {"cache__block_size": 4, "cache__num_blocks": num_blocks}
    with start(name, cache_dir, **pool, model__max_model_len=72) as llm:
        free = llm.service.free_blocks()
        for _ in range(2):
            assert ids(llm.generate(asked, params)) == [output for outputs in alone for output in outputs]
        one_by_one = [ids(llm.generate([prompt], one)) for prompt, one in zip(asked, params, strict=True)]
        assert one_by_one == alone
        scheduler = llm.service._scheduler
        assert scheduler.num_preemptions > 0
        assert scheduler.num_forks > 0
        assert scheduler.prefix_hits > 100
        assert llm.service.free_blocks() == free


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_blocks_that_went_to_the_host_and_came_back_change_no_text(name, cache_dir, monkeypatch):
    monkeypatch.setattr(host_tier, "START_SECONDS", 0.0)  # no prefix of a tiny model is long enough to pay
    monkeypatch.setitem(host_tier.RATES, "cpu", host_tier.Rates(link_bytes=1e12, operations=1e9))
    expected = tiny_models.greedy(name, LENGTHS)
    with start(name, cache_dir, **SMALL_BLOCKS, cache__host_memory="4MiB") as llm:
        before = LOG.compiled().get("unexpected", 0)
        for _ in range(2):
            assert ids(llm.generate(prompts(LENGTHS), greedy())) == expected
            llm.generate([[7] * 60], greedy(4))
            assert [ids(llm.generate([prompt], greedy()))[0] for prompt in prompts(LENGTHS)] == expected
        assert llm.service.stats()["restores"] > 10
        assert LOG.compiled().get("unexpected", 0) == before


def test_host_tier_that_never_pays_is_off(cache_dir):
    with start("llama", cache_dir, cache__host_memory="4MiB") as llm:
        assert runner_of(llm).programs.gather_blocks == ()
        assert llm.service._scheduler.block_manager.host_pools == ()


def test_host_memory_that_holds_no_block_is_refused(cache_dir):
    with pytest.raises(ConfigError, match=r"cache.host_memory: 100 bytes hold no block of every layer group; \d+ do"):
        start("llama", cache_dir, cache__host_memory="100")
