"""Other weights in a running engine with a real, tiny model: its texts, against an engine that began with them."""

import gc
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import tiny_models
from xlaserve.engine.completion import Completion
from xlaserve.engine.llm import LLM
from xlaserve.engine.model_admin import ModelAdmin, SwapPolicy
from xlaserve.engine.service import GenerationService
from xlaserve.engine.weights_store import WeightsStore
from xlaserve.errors import InvalidRequest, ModelAsleep
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams

SETTINGS = [
    "model.dtype=float32",
    "model.max_model_len=256",
    "cache.num_blocks=40",
    "scheduler.max_num_seqs=4",
    "scheduler.max_num_batched_tokens=8",
]
PROMPT = tiny_models.prompt(40)
LENGTH = 200  # tokens: enough to be still running when the weights change
LONG = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
SHORT = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Path:
    """The model with other weights."""
    folder = shutil.copytree(tiny_models.folder("llama"), tmp_path_factory.mktemp("models") / "changed")
    rng = np.random.default_rng(0)
    file = folder / "model.safetensors"
    tensors = {name: x + rng.normal(0, 0.05, x.shape).astype(x.dtype) for name, x in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def fresh(changed, cache_dir) -> Iterator[LLM]:
    """An engine that began with them."""
    with LLM(str(changed), overrides=SETTINGS, cache_dir=cache_dir) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(cache_dir) -> Iterator[LLM]:
    with LLM(str(tiny_models.folder("llama")), overrides=SETTINGS, cache_dir=cache_dir) as llm:
        yield llm


@pytest.fixture
def llm(running) -> LLM:
    """With the weights that it began with, whatever it has had since."""
    admin(running.service).swap(tiny_models.folder("llama"), "drain", 60.0)
    return running


def logprobs_of(completion: Completion) -> list[float]:
    """Of the prompt but its first token, and of the answer."""
    assert completion.prompt_tokens is not None
    assert completion.logprobs is not None
    told = [*completion.prompt_tokens[1:], *completion.logprobs]
    return [each.logprob for each in told if each.logprob is not None]


def admin(service: GenerationService) -> ModelAdmin:
    assert service.admin is not None
    return service.admin


def swap_under(llm: LLM, folder: Path, policy: SwapPolicy, *, both_fit: bool = True) -> list[int]:
    """What a request gives that has begun when the new weights are there, or else are about to be read."""
    store, begun = admin(llm.service)._store, []

    def begin() -> None:
        generation = llm.service.submit(PROMPT, LONG)
        first = generation.next(timeout=20)
        assert first is not None
        begun.append((generation, list(first.token_ids)))

    def load(checkpoint, version):
        WeightsStore.load(store, checkpoint, version)  # type: ignore[arg-type]
        begin()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "fits_beside", lambda: both_fit)
        if both_fit:
            patch.setattr(store, "load", load)
        else:
            begin()
        admin(llm.service).swap(folder, policy, 20.0)
    [(generation, tokens)] = begun
    return tokens + [token for delta in generation for token in delta.token_ids]


def test_texts_are_of_the_old_or_of_the_new_weights_and_nothing_is_compiled(llm, fresh, changed):
    old_text = llm.generate([PROMPT], LONG)[0].token_ids
    new_text = fresh.generate([PROMPT], LONG)[0].token_ids
    assert old_text != new_text
    compiled = LOG.compiled().get("unexpected", 0)

    assert swap_under(llm, changed, "drain") == old_text
    assert llm.generate([PROMPT], LONG)[0].token_ids == new_text

    tokens = swap_under(llm, tiny_models.folder("llama"), "recompute")
    same = next(n for n in range(len(tokens)) if tokens[n] != new_text[n])
    assert same > 0
    part = SamplingParams(temperature=0, max_tokens=LENGTH - same, ignore_eos=True)
    assert tokens[same:] == llm.generate([PROMPT + tokens[:same]], part)[0].token_ids

    tokens = swap_under(llm, changed, "abort")
    assert tokens == old_text[: len(tokens)]
    assert len(tokens) < len(old_text)
    assert LOG.compiled().get("unexpected", 0) == compiled


def test_a_swapped_engine_is_a_fresh_one(llm, fresh, changed):
    """Sampling, logprobs, what is told of prompts, embeddings: whatever was cached before."""
    llm.generate([PROMPT, PROMPT[:20]], SHORT)
    admin(llm.service).swap(changed, "drain", 60.0)
    for mine, theirs in zip(*(each.generate([PROMPT, PROMPT[:20]], SHORT) for each in (llm, fresh)), strict=True):
        assert mine.token_ids == theirs.token_ids
        np.testing.assert_allclose(logprobs_of(mine), logprobs_of(theirs), atol=1e-4)
    np.testing.assert_allclose(llm.embed([PROMPT]), fresh.embed([PROMPT]), atol=1e-4)


@pytest.mark.parametrize("policy", ["drain", "recompute"])
def test_where_two_sets_do_not_fit_one_goes_before_the_other_comes(llm, fresh, changed, policy):
    assert len(swap_under(llm, changed, policy, both_fit=False)) == LENGTH
    assert llm.generate([PROMPT], LONG)[0].token_ids == fresh.generate([PROMPT], LONG)[0].token_ids


def not_finite(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    name = "model.layers.1.mlp.up_proj.weight"
    return tensors | {name: np.full_like(tensors[name], np.nan)}


def misshapen(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    name = "model.layers.1.mlp.up_proj.weight"
    return tensors | {name: tensors[name][:-1]}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda file: save_file(not_finite(load_file(file)), file), "NaN or infinity"),
        (lambda file: save_file(misshapen(load_file(file)), file), r"up_proj.weight: shape \["),
        (lambda file: file.write_bytes(file.read_bytes()[:-100]), "model.safetensors"),
        (lambda file: file.unlink(), "model.safetensors"),
    ],
    ids=["not finite", "misshapen", "cut off", "no weights"],
)
@pytest.mark.parametrize("both_fit", [True, False])
def test_a_bad_checkpoint_leaves_the_old_weights_serving(llm, tmp_path, make, told, both_fit, monkeypatch):
    folder = shutil.copytree(tiny_models.folder("llama"), tmp_path / "bad")
    make(folder / "model.safetensors")
    before = llm.generate([PROMPT], SHORT)[0].token_ids
    monkeypatch.setattr(admin(llm.service)._store, "fits_beside", lambda: both_fit)
    with pytest.raises(InvalidRequest, match=told):
        admin(llm.service).swap(folder, "drain", 60.0)
    assert llm.generate([PROMPT], SHORT)[0].token_ids == before


@pytest.mark.parametrize(
    ("name", "told"), [("llama-mqa", "num_kv_heads is 1, here 2"), ("qwen3", "family is qwen3, here llama")]
)
def test_another_architecture_is_refused_by_what_differs(llm, name, told):
    with pytest.raises(InvalidRequest, match=told):
        admin(llm.service).swap(tiny_models.folder(name), "drain", 60.0)


@pytest.mark.parametrize("level", [1, 2])
def test_a_model_that_has_slept_says_what_it_said_and_nothing_is_compiled(llm, level):
    before = llm.generate([PROMPT, PROMPT[:20]], SHORT)
    compiled = LOG.compiled().get("unexpected", 0)
    for _ in range(2):
        admin(llm.service).sleep(level, 10.0)
        with pytest.raises(ModelAsleep):
            llm.generate([PROMPT], SHORT)
        admin(llm.service).wake()
        after = llm.generate([PROMPT, PROMPT[:20]], SHORT)
        assert [each.token_ids for each in after] == [each.token_ids for each in before]
        np.testing.assert_allclose(logprobs_of(after[0]), logprobs_of(before[0]), atol=1e-4)
    assert LOG.compiled().get("unexpected", 0) == compiled


@pytest.mark.parametrize("level", [1, 2])
def test_the_device_is_free_while_a_model_sleeps(llm, level):
    """Nothing else refers to the weights, nor, at level 2, to the pools."""
    runner = admin(llm.service)._store._runner  # type: ignore[attr-defined]
    [weights] = runner._weights.values()
    arrays = jax.tree.leaves(weights.params) + (jax.tree.leaves(runner._kv_caches) if level == 2 else [])
    alive = [weakref.ref(array) for array in arrays]
    del weights, arrays
    admin(llm.service).sleep(level, 10.0)
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []
    admin(llm.service).wake()


def test_weights_that_were_replaced_are_freed(llm, changed):
    runner = admin(llm.service)._store._runner  # type: ignore[attr-defined]
    alive = [weakref.ref(array) for weights in runner._weights.values() for array in jax.tree.leaves(weights.params)]
    admin(llm.service).swap(changed, "drain", 10.0)
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []
