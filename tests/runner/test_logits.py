"""The sample head's distribution, exactly and by 100,000 draws, against transformers' processors written out anew."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.runner.logits_reference import probabilities, process
from tests.runner.test_sample import reset
from xlaserve.runner.commands import LogitRules, ResetRow
from xlaserve.runner.heads.blocks import in_blocks
from xlaserve.runner.heads.draw import draw
from xlaserve.runner.heads.edits import edit
from xlaserve.runner.row_state import RowState, initial_row_state

ROWS, CALLS = 4000, 25  # 100,000 draws
SEED = 11


@jax.jit
def scores_and_tokens(logits, state: RowState, positions, masks):
    edited = edit(logits, state.sampling, state.rules, state.counts, positions, masks)
    drawn = draw(edited, in_blocks(edited, 1), state.sampling, positions)
    return jnp.where(edited >= drawn.cutoff[:, None], edited / drawn.scale[:, None], -jnp.inf), drawn.tokens


def state_of(rows: list[dict], vocab: int) -> RowState:
    """One request per dict, of `process`'s arguments."""
    state = initial_row_state(len(rows), 1, 1, vocab, np.int16)
    for row, asked in enumerate(rows):
        asked = dict(asked)
        draws = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        draws = {name: asked.pop(name, default) for name, default in draws.items()}
        prompt, output = tuple(asked.pop("prompt", ())), tuple(asked.pop("output", ()))
        first_stop = len(prompt) + asked.pop("min_tokens", 0)
        rules = LogitRules(
            bias=tuple(asked.pop("bias", {}).items()), prompt_ids=prompt, output_ids=output, first_stop=first_stop,
            forbidden=tuple(asked.pop("forbidden", ())), stop_ids=tuple(asked.pop("stop_ids", ())), **asked,
        )  # fmt: skip
        state = reset(state, ResetRow(row, ((),), seed=SEED, rules=rules, **draws))
    return state


def positions_of(rows: list[dict]) -> jnp.ndarray:
    return jnp.array([len(row.get("prompt", ())) + len(row.get("output", ())) for row in rows], jnp.int32)


def random_request(rng: np.random.Generator, vocab: int) -> dict:
    """Each parameter is set in about half of them."""

    def some(value, off):
        return value if rng.random() < 0.5 else off

    return {
        "prompt": rng.integers(vocab, size=9).tolist(),
        "output": rng.integers(vocab, size=int(rng.integers(9))).tolist() * 2,
        "bias": some({int(token): float(rng.uniform(-9, 9)) for token in rng.integers(vocab, size=5)}, {}),
        "forbidden": some(rng.integers(vocab, size=3).tolist(), []),
        "repetition_penalty": some(float(rng.uniform(0.5, 2)), 1.0),
        "frequency_penalty": some(float(rng.uniform(-2, 2)), 0.0),
        "presence_penalty": some(float(rng.uniform(-2, 2)), 0.0),
        "stop_ids": [1, 3],
        "min_tokens": some(9, 0),
        "temperature": some(float(rng.uniform(0.3, 2)), 1.0),
        "top_k": some(int(rng.integers(1, vocab)), 0),
        "top_p": some(float(rng.uniform(0.3, 0.99)), 1.0),
        "min_p": some(float(rng.uniform(0.001, 0.3)), 0.0),
    }


@pytest.mark.parametrize("vocab", [40, 300, 2000])
def test_scores_equal_transformers_processors(vocab):
    rng = np.random.default_rng(vocab)
    rows = [random_request(rng, vocab) for _ in range(64)]
    logits = (rng.standard_normal((64, vocab)) * 3).astype(np.float32)
    everything = jnp.full((64, -(-vocab // 32)), -1, jnp.int32)
    scores, tokens = scores_and_tokens(logits, state_of(rows, vocab), positions_of(rows), everything)
    for row, asked in enumerate(rows):
        expected = process(logits[row], **asked)
        np.testing.assert_array_equal(np.isfinite(scores[row]), np.isfinite(expected), err_msg=str(asked))
        np.testing.assert_allclose(scores[row], expected, rtol=1e-4, atol=1e-4)
        assert np.isfinite(expected[tokens[row]])


PARIS = {"prompt": [7, 7, 7]}


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.7}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}], ids=str
)
@pytest.mark.parametrize("output", [[], [9], [9, 9, 7]])
def test_report_31_which_tokens_penalties_see(penalty, output):
    """Repetition: prompt and output, by division or multiplication; presence and frequency: the output only."""
    logits = np.linspace(-2, 2, 40, dtype=np.float32)[None]
    request = PARIS | penalty | {"output": output}
    scores, _ = scores_and_tokens(
        jnp.asarray(logits), state_of([request], 40), positions_of([request]), jnp.full((1, 2), -1, jnp.int32)
    )
    changed = np.flatnonzero(np.asarray(scores[0]) != logits[0]).tolist()
    assert changed == sorted({*output, *(PARIS["prompt"] if "repetition_penalty" in penalty else ())})
    times = np.bincount(output, minlength=40)
    if "repetition_penalty" in penalty:
        assert scores[0, 7] == np.float32(logits[0, 7] * np.float32(1.7))  # negative
    elif "presence_penalty" in penalty:
        np.testing.assert_allclose(logits[0] - scores[0], 2.0 * (times > 0), atol=1e-6)
    else:
        np.testing.assert_allclose(logits[0] - scores[0], 2.0 * times, atol=1e-6)


CUTS = ({"temperature": 0.6}, {"temperature": 1.7}, {"top_k": 7}, {"top_p": 0.7}, {"min_p": 0.1})
SEEN = {"prompt": [0, 1, 2, 3], "output": [3, 4, 4, 4, 5]}
PENALTIES = (
    SEEN | {"repetition_penalty": 1.4},
    SEEN | {"presence_penalty": 1.2},
    SEEN | {"frequency_penalty": 0.8},
    SEEN | {"bias": {3: 2.0, 90: 3.0}, "forbidden": [0]},
    SEEN | {"repetition_penalty": 1.3, "frequency_penalty": -0.5, "temperature": 1.3, "top_k": 40, "min_p": 0.02},
    {"top_k": 150, "top_p": 0.9, "temperature": 2.0, "min_p": 0.03},  # more than the candidates
)


@functools.cache
def many(vocab: int):
    def tokens(logits, row_state: RowState, positions):
        sampling, rules, counts = jax.tree.map(
            lambda array: jnp.broadcast_to(array, (ROWS, *array.shape[1:])),
            (row_state.sampling, row_state.rules, row_state.counts),
        )
        masks = jnp.full((ROWS, -(-vocab // 32)), -1, jnp.int32)
        edited = edit(jnp.broadcast_to(logits, (ROWS, vocab)), sampling, rules, counts, positions, masks)
        return jnp.bincount(draw(edited, in_blocks(edited, 1), sampling, positions).tokens, length=vocab)

    return jax.jit(tokens)


@pytest.mark.parametrize("request_", [*CUTS, *PENALTIES], ids=str)
def test_100_000_draws_follow_the_distribution(request_):
    vocab = 100 if request_.get("top_k") != 150 else 170
    logits = np.sort(np.random.default_rng(5).standard_normal(vocab).astype(np.float32) * 1.5)[::-1].copy()
    state = state_of([request_], vocab)
    calls = (jnp.arange(ROWS, dtype=jnp.int32) + ROWS * call + 50 for call in range(CALLS))
    counts = np.sum([many(vocab)(logits, state, positions) for positions in calls], axis=0)
    exact = probabilities(process(logits, **request_))
    assert counts.sum() == ROWS * CALLS
    assert counts[exact == 0].sum() == 0
    assert chi_square_holds(counts, exact)
    assert not chi_square_holds(counts, probabilities(process(logits, **request_ | {"temperature": 1.1}))), (
        "it can fail"
    )


def chi_square_holds(counts: np.ndarray, exact: np.ndarray) -> bool:
    """Whether such counts come up in all but one of 10,000 trials (Wilson and Hilferty's approximation)."""
    draws = counts.sum()
    common = exact * draws >= 5  # the rest of the distribution is one class
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(exact[common], exact[~common].sum()) * draws
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3
    return bool(((observed - expected) ** 2 / expected).sum() < limit)


def test_what_allows_nothing_gives_no_token():
    request = {"forbidden": list(range(40))}
    for options in ({}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}):
        state = state_of([request | options], 40)
        _, tokens = scores_and_tokens(
            jnp.zeros((1, 40)), state, jnp.zeros(1, jnp.int32), jnp.full((1, 2), -1, jnp.int32)
        )
        assert tokens.tolist() == [-1]


def test_ties_at_a_cut_are_all_kept():
    """As transformers' top_k does; also where they are more than the candidates, and found by bisection."""
    for tied in (10, 200):
        logits = np.full(300, -5.0, np.float32)
        logits[:3], logits[3 : 3 + tied] = 2.0, 1.0
        state = state_of([{"top_k": 5}], 300)
        scores, _ = scores_and_tokens(
            jnp.asarray(logits)[None], state, jnp.zeros(1, jnp.int32), jnp.full((1, 10), -1, jnp.int32)
        )
        assert np.isfinite(scores[0]).sum() == np.isfinite(process(logits, top_k=5)).sum() == 3 + tied
