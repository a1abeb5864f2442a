"""The heads that read prompts, against numpy in float64 and against transformers."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_models
from tests.runner.test_model_runner import WIDTH, make_runner, reset
from xlaserve.models.config import parse_config
from xlaserve.runner.commands import Body, Pool, PromptLogprobs, RowTokens, Sample
from xlaserve.runner.futures import PoolFuture
from xlaserve.runner.heads.prompt_logprobs import make_prompt_logprobs, pack_prompt_logprobs, prompt_logprobs_packing
from xlaserve.sampling_params import MAX_LOGPROBS

SIZE, HIDDEN = 4, 16


def head_output(weight, hidden, command: PromptLogprobs):
    config, _ = tiny_models.read("llama")
    packing = prompt_logprobs_packing(SIZE)
    head = make_prompt_logprobs(parse_config(config | {"vocab_size": len(weight)}, "here"), packing)
    return head(jnp.asarray(weight), jnp.asarray(hidden), jnp.asarray(pack_prompt_logprobs(packing, command)))


@pytest.mark.parametrize("vocab_size", [5, 300])
def test_logprobs_ranks_and_alternatives(vocab_size):
    generator = np.random.default_rng(vocab_size)
    weight = generator.standard_normal((vocab_size, HIDDEN), np.float32)
    hidden = generator.standard_normal((SIZE, HIDDEN), np.float32)
    rows, next_ids = (2, 0, 2), (4, 0, 3)
    out = head_output(weight, hidden, PromptLogprobs(rows, next_ids))
    logits = hidden.astype(np.float64)[list(rows)] @ weight.astype(np.float64).T
    exact = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    for index, next_id in enumerate(next_ids):
        assert out.ok[index]
        assert out.logprobs[index] == pytest.approx(exact[index, next_id], abs=1e-5)
        assert out.ranks[index] == 1 + (exact[index] > exact[index, next_id]).sum()
        best = np.argsort(-exact[index])[:MAX_LOGPROBS]
        assert np.asarray(out.top_ids[index, : len(best)]).tolist() == best.tolist()
        np.testing.assert_allclose(out.top_logprobs[index, : len(best)], exact[index, best], atol=1e-5)
        assert (np.asarray(out.top_logprobs[index, len(best) :]) == -np.inf).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_hidden_rows_that_are_not_finite_are_told(value):
    weight, hidden = np.ones((5, HIDDEN), np.float32), np.ones((SIZE, HIDDEN), np.float32)
    hidden[1, 3] = value
    assert np.asarray(head_output(weight, hidden, PromptLogprobs((0, 1, 2), (0, 0, 0))).ok[:3]).tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sums_of_hidden_rows(dtype):
    hidden = jnp.asarray(np.random.default_rng(0).standard_normal((SIZE, HIDDEN)), dtype).at[3].set(jnp.nan)
    sums = PoolFuture(hidden, ((1, 2), (0, 1))).result().sums
    wide = np.asarray(hidden, np.float64)
    np.testing.assert_allclose(sums, [wide[1] + wide[2], wide[0]], rtol=1e-12)


@pytest.mark.parametrize("name", tiny_models.HIDDEN)
def test_tokens_in_the_middle_of_their_rows_equal_transformers(name):
    """Two rows in one body, read at places that are neither their first token nor their last."""
    runner = make_runner(name)
    prompt, exact = tiny_models.logprobs(name)
    _, hidden = tiny_models.hidden(name)
    for row in (0, 2):
        reset(runner, row)
    assert 16 * WIDTH >= 25
    rows = (RowTokens(0, 0, 20, tuple(prompt[:20])), RowTokens(2, 0, 25, tuple(prompt[:25])))
    runner.execute(Body(rows, (), (3, 4, 20 + 11, 20 + 24)))
    scores, pooled = runner.execute(PromptLogprobs((2, 0, 1), (7, 8, 9))), runner.execute(Pool(((0, 2), (3, 1))))
    last = runner.execute(Sample((), want_logprobs=False))
    assert scores
    assert pooled
    assert last
    expected = [exact[11, 7], exact[3, 8], exact[4, 9]]
    np.testing.assert_allclose(scores.result().logprobs, expected, atol=1e-4)
    np.testing.assert_allclose(pooled.result().sums, [hidden[3] + hidden[4], hidden[24]], atol=1e-4)
    assert last.result().tokens.shape == (0,)
