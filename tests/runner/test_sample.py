"""The sample head against exact distributions and against transformers' warpers."""

import functools
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_models
from xlaserve.models.config import ModelConfig
from xlaserve.runner.commands import LogitRules, ResetRow, Sample, SampleRow
from xlaserve.runner.heads.draw import CANDIDATES
from xlaserve.runner.heads.sample import make_sample, pack_masks, pack_sample, sample_packing
from xlaserve.runner.row_state import (
    RowState,
    initial_row_state,
    pack_reset,
    pack_rules,
    reset_packing,
    reset_row,
    rules_packing,
    set_rules,
)
from xlaserve.sampling_params import MAX_LOGPROBS

CONFIG = cast(ModelConfig, SimpleNamespace(final_logit_softcap=None))  # all that the head asks of it
DRAWS = 1024  # rows of one call, all with the same logits: as many independent draws


def sample(
    logits, *, greedy=False, want_logprobs=False, processed=False, seeds=None, positions=None, masks=(), rules=None,
    **options,
):  # fmt: skip
    """Samples one token per row of logits [S, V], through the head with an identity in place of the vocabulary.

    options: of all rows or by row, as ResetRow has them. rules: a LogitRules of all rows, or one per row.
    """
    size, vocab = logits.shape
    state = initial_row_state(size, 1, 1, vocab)
    of_rows = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    seeds = range(size) if seeds is None else seeds
    rules = rules if isinstance(rules, list) else [rules] * size
    if set(rules) == {None}:  # the same as all resets, in one piece
        dtypes = {name: getattr(state.sampling, name).dtype for name in of_rows}
        values = {name: jnp.broadcast_to(jnp.asarray(of_rows[name], dtypes[name]), size) for name in of_rows}
        words = jnp.stack([jnp.zeros(size, jnp.uint32), jnp.asarray(list(seeds), jnp.uint32)], axis=1)
        state = replace(state, sampling=replace(state.sampling, seed=words, **values))
    else:
        for row in range(size):
            mine: dict[str, Any] = {
                name: value if np.isscalar(value) else value[row] for name, value in of_rows.items()
            }
            state = reset(state, ResetRow(row, ((),), seed=seeds[row], rules=rules[row], **mine))
    rows = tuple(SampleRow(i, i, 7 if positions is None else positions[i]) for i in range(size))
    command = Sample(rows, want_logprobs, tuple(masks))
    return run(state, jnp.asarray(logits, jnp.float32), command, greedy=greedy, processed=processed)[:2]


@functools.cache
def head(size: int, greedy: bool, processed: bool):
    return jax.jit(make_sample(CONFIG, sample_packing(size), greedy=greedy, processed_logprobs=processed))


def reset(state: RowState, command: ResetRow) -> RowState:
    """The command by its two programs."""
    packing = reset_packing(1, 1)
    tables, sampling = _reset(state.block_tables, state.sampling, pack_reset(packing, command), packing=packing)
    state = replace(state, block_tables=tables, sampling=sampling)
    if command.rules is None:
        return state
    packing = rules_packing(state.counts.shape[1])
    packed = pack_rules(packing, command.row, command.rules)
    rules, counts = _set_rules(state.rules, state.counts, packed, packing=packing)
    return replace(state, rules=rules, counts=counts)


def run(state: RowState, logits, command: Sample, *, greedy=False, processed=False):
    """(SampleOutput, last_tokens, RowState) of the head, with an identity in place of the vocabulary."""
    size, vocab = logits.shape
    compiled = head(size, greedy, processed)
    packed = pack_sample(sample_packing(size), command)
    if greedy:
        output, last = compiled(jnp.eye(vocab), logits, state.last_tokens, packed)
        return output, last, replace(state, last_tokens=last)
    output, counts, last = compiled(
        jnp.eye(vocab), logits, state.sampling, state.rules, state.counts, state.last_tokens, packed,
        pack_masks(command, size, vocab),
    )  # fmt: skip
    return output, last, replace(state, counts=counts, last_tokens=last)


_reset = jax.jit(reset_row, static_argnames="packing")
_set_rules = jax.jit(set_rules, static_argnames="packing")


def bits(allowed) -> np.ndarray:
    """bool [V] as int32 [ceil(V / 32)]"""
    padded = np.pad(allowed, (0, -len(allowed) % 32))
    return np.packbits(padded, bitorder="little").view(np.int32)


@pytest.mark.parametrize("vocab", tiny_models.VOCABULARIES)
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), tiny_models.SAMPLING)
def test_draws_follow_the_distribution(vocab, temperature, top_k, top_p):
    recorded = tiny_models.load(tiny_models.SAMPLING_FILE)
    logits = np.tile(recorded[f"logits/{vocab}"], (DRAWS, 1))
    probabilities = recorded[tiny_models.sampling_key(vocab, temperature, top_k, top_p)]
    output, _ = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    counts = np.bincount(output.tokens, minlength=vocab)
    assert counts[probabilities == 0].sum() == 0
    common = probabilities * DRAWS >= 5  # the rest of the distribution is one class
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * DRAWS
    used = expected > 0
    chi_square = ((observed - expected)[used] ** 2 / expected[used]).sum()
    freedom = used.sum() - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 8  # beyond 1e-4 of the distribution


def test_greedy_is_argmax_in_both_programs():
    logits = np.random.default_rng(0).standard_normal((8, 300)).astype(np.float32)
    for greedy in (True, False):
        output, last_tokens = sample(logits, greedy=greedy, temperature=0.0)
        np.testing.assert_array_equal(output.tokens, logits.argmax(-1))
        np.testing.assert_array_equal(last_tokens, output.tokens)


def test_top_k_of_one_and_a_tiny_nucleus_are_greedy():
    logits = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    cuts: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 1e-6}]
    for options in cuts:
        output, _ = sample(logits, temperature=2.0, **options)
        np.testing.assert_array_equal(output.tokens, logits.argmax(-1))


def test_a_seed_draws_the_same_in_any_row_and_batch_and_another_at_the_next_position():
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    alone, _ = sample(logits[None], seeds=[42])
    among, _ = sample(np.tile(logits, (8, 1)), seeds=[1, 2, 42, 3, 4, 5, 6, 42])
    assert among.tokens[2] == among.tokens[7] == alone.tokens[0]
    along, _ = sample(np.tile(logits, (64, 1)), seeds=[42] * 64, positions=range(64))
    assert len(set(along.tokens.tolist())) > 20


def test_rows_of_one_batch_keep_their_own_parameters():
    logits = np.tile(np.random.default_rng(0).standard_normal(500).astype(np.float32), (4, 1))
    options = {"temperature": [0.0, 1.0, 1.5, 1.0], "top_k": [0, 1, 0, 0], "top_p": [1.0, 1.0, 1.0, 0.3]}
    output, _ = sample(logits, seeds=[9] * 4, positions=[3] * 4, **options)
    assert output.tokens[0] == output.tokens[1] == logits[0].argmax()
    own: dict[int, dict[str, Any]] = {2: {"temperature": 1.5}, 3: {"top_p": 0.3}}
    for row, alone in own.items():
        solo, _ = sample(logits[:1], seeds=[9], positions=[3], **alone)
        assert output.tokens[row] == solo.tokens[0]


@pytest.mark.parametrize("vocab", [5, 32, 300])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.5}])
def test_masked_tokens_are_never_sampled_and_logprobs_stay_raw(vocab, options):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((64, vocab)).astype(np.float32)
    allowed = rng.random((64, vocab)) < 0.3
    allowed[np.arange(64), rng.integers(vocab, size=64)] = True
    allowed[::2] = True  # every second row has no mask
    masks = [(row, bits(allowed[row])) for row in range(1, 64, 2)]
    free, _ = sample(logits, want_logprobs=True, **options)
    output, last_tokens = sample(logits, masks=masks, want_logprobs=True, **options)
    assert allowed[np.arange(64), output.tokens].all()
    np.testing.assert_array_equal(output.tokens[::2], free.tokens[::2])
    np.testing.assert_array_equal(last_tokens, output.tokens)
    np.testing.assert_array_equal(output.top_logprobs, free.top_logprobs)
    total = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    np.testing.assert_allclose(output.logprobs, logits[np.arange(64), output.tokens] - total, atol=1e-5)
    if options == {"temperature": 0.0}:
        np.testing.assert_array_equal(output.tokens, np.where(allowed, logits, -np.inf).argmax(-1))


def test_logprobs_are_raw_and_ordered():
    logits = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))
    for temperature in (0.0, 0.3, 2.0):
        output, _ = sample(logits, want_logprobs=True, temperature=temperature)
        chosen = np.take_along_axis(expected, np.asarray(output.tokens)[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(output.logprobs, chosen, atol=1e-5)
        order = np.argsort(-expected, axis=-1)[:, :MAX_LOGPROBS]
        np.testing.assert_array_equal(output.top_ids, order)
        np.testing.assert_allclose(output.top_logprobs, np.take_along_axis(expected, order, axis=1), atol=1e-5)


def test_a_vocabulary_smaller_than_the_alternatives():
    output, _ = sample(np.array([[0.0, 2.0, 1.0]], np.float32), greedy=True, want_logprobs=True, temperature=0.0)
    np.testing.assert_array_equal(output.top_ids[0, :3], [1, 2, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("greedy", [True, False])
def test_logits_that_are_not_finite_are_flagged_for_their_row_alone(bad, greedy):
    hidden = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    hidden[2] = bad
    rows = tuple(SampleRow(i, i, 3) for i in range(4))
    command = Sample(rows, False, () if greedy else ((2, bits(np.arange(8) == 1)),))
    output, *_ = run(initial_row_state(4, 1, 1, 8), jnp.asarray(hidden), command, greedy=greedy)
    np.testing.assert_array_equal(output.ok, [True, True, False, True])


@pytest.mark.parametrize("greedy", [True, False])
def test_padding_rows_leave_the_last_tokens_and_the_counts_alone(greedy):
    state = replace(initial_row_state(3, 1, 1, 4), last_tokens=jnp.array([11, 12, 13], jnp.int32))
    rules = None if greedy else LogitRules(presence_penalty=1.0)
    for row in range(3):
        state = reset(state, ResetRow(row, ((),), 0.0, 0, 1.0, 0, rules=rules))
    command = Sample((SampleRow(0, 1, 5),), False)
    hidden = jnp.eye(4)[jnp.array([2, 0, 0, 0])]
    _, last, state = run(state, hidden, command, greedy=greedy)
    np.testing.assert_array_equal(last, [11, 2, 13])
    np.testing.assert_array_equal(state.counts.sum(axis=-1), [0, 0 if greedy else 1, 0])


@pytest.mark.parametrize("processed", [False, True])
def test_no_more_is_sorted_than_the_names_of_blocks(processed):
    """On a CPU a sort of as many logits takes twenty times as long as finding the best of them."""
    size, hidden, vocab = 4, 8, 30_000
    state = initial_row_state(size, 1, 1, vocab)
    command = Sample((SampleRow(0, 0, 0),), False, ())
    lowered = head(size, False, processed).lower(
        jnp.zeros((vocab, hidden)), jnp.zeros((size, hidden)), state.sampling, state.rules, state.counts,
        state.last_tokens, pack_sample(sample_packing(size), command), pack_masks(command, size, vocab),
    )  # fmt: skip
    program = lowered.compile().as_text()
    sorts = re.findall(r"= \w+\[(\d+),(\d+)\]\S* sort\(", program)
    assert len(sorts) == program.count(" sort(") > 0
    assert {(int(rows), int(names)) for rows, names in sorts} <= {(size, CANDIDATES), (size, MAX_LOGPROBS)}
    assert "TopK" in program
