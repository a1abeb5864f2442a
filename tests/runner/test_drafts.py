"""Sample rows with drafts: several tokens of one request in a step, each as if it had been sampled alone."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runner.test_sample import CONFIG, bits, reset
from xlaserve.runner.commands import NO_DRAFT, LogitRules, ResetRow, Sample, SampleRow
from xlaserve.runner.heads.drafts import accepted, with_drafts
from xlaserve.runner.heads.sample import make_sample, pack_masks, pack_sample, sample_packing
from xlaserve.runner.row_state import RowState, initial_row_state

VOCAB, NUM_DRAFTS = 12, 3
SAMPLED = [  # of the requests below, each position alone: drafts are right if they say the same
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5, "top_k": 4},
    {"temperature": 0.0, "rules": LogitRules(frequency_penalty=1.5, presence_penalty=0.7)},
    {"temperature": 0.9, "seed": 6, "rules": LogitRules(repetition_penalty=3.0, prompt_ids=(1, 2))},
    {"temperature": 0.0, "rules": LogitRules(stop_ids=(0, 3, 4, 5), first_stop=12, forbidden=(6,))},
]


@st.composite
def groups(draw) -> list[tuple[list[int], list[int]]]:
    """By request: its drafts, and what is sampled."""
    drafts = draw(st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=4))
    return [
        (each, draw(st.lists(st.integers(0, 2), min_size=len(each) + 1, max_size=len(each) + 1))) for each in drafts
    ]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(found=groups())
def test_a_row_counts_if_all_drafts_up_to_it_were_sampled(found):
    size = 16
    drafts, tokens, expected = ([value] * size for value in (NO_DRAFT, 0, True))
    counts = np.zeros((size, 4), int)
    place = 0
    for mine, sampled in found:
        right = True
        for depth, token in enumerate(sampled):
            drafts[place] = mine[depth - 1] if depth else NO_DRAFT
            right = right and (not depth or sampled[depth - 1] == mine[depth - 1])
            tokens[place], expected[place] = token, right
            for draft in mine[:depth]:
                counts[place, draft] += 1
            place += 1
    np.testing.assert_array_equal(_accepted(jnp.array(drafts), jnp.array(tokens)), expected)
    found_counts = _with_drafts(jnp.ones((size, 4), jnp.int16), jnp.array(drafts), NUM_DRAFTS)
    np.testing.assert_array_equal(found_counts, 1 + counts)


_accepted = jax.jit(accepted)
_with_drafts = jax.jit(with_drafts, static_argnums=2)


@functools.cache
def head(size: int, greedy: bool):
    return jax.jit(make_sample(CONFIG, sample_packing(size), greedy=greedy, num_drafts=NUM_DRAFTS))


def run(state: RowState, logits, command: Sample):
    """(output, RowState), through the full head; `logits` by hidden row."""
    size = 4 if len(command.rows) <= 4 else 32
    logits = np.pad(logits, ((0, 32 - len(logits)), (0, 0)))
    output, counts, last = head(size, False)(
        jnp.eye(VOCAB), logits, state.sampling, state.rules, state.counts, state.last_tokens,
        pack_sample(sample_packing(size), command), pack_masks(command, size, VOCAB),
    )  # fmt: skip
    return output, replace(state, counts=counts, last_tokens=last)


def start() -> RowState:
    state = initial_row_state(len(SAMPLED), 1, 1, VOCAB)
    for row, options in enumerate(SAMPLED):
        rest = {"top_k": 0, "top_p": 1.0, "seed": 0, "rules": LogitRules(bias=((0, 0.1),))} | options
        state = reset(state, ResetRow(row, ((),), **rest))
    return state


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2])
def test_each_is_sampled_counted_and_scored_as_alone(wrong_at):
    """All requests at once with drafts, the one at `wrong_at` wrong, against one token after the other."""
    logits = np.random.default_rng(3).standard_normal((len(SAMPLED), 1 + NUM_DRAFTS, VOCAB)).astype(np.float32)
    mask = bits(np.arange(VOCAB) % 2 == 0)
    alone, expected = start(), []
    for row in range(len(SAMPLED)):
        expected.append([])
        for depth in range(1 + NUM_DRAFTS):
            masks = ((0, mask),) if depth == 2 else ()
            output, alone = run(alone, logits[row, depth][None], Sample((SampleRow(0, row, 10 + depth),), True, masks))
            expected[row].append((int(output.tokens[0]), float(output.logprobs[0]), np.asarray(output.top_ids[0])))
    rows, masks = [], []
    for row in range(len(SAMPLED)):
        for depth in range(1 + NUM_DRAFTS):
            draft = NO_DRAFT if not depth else expected[row][depth - 1][0]
            draft = (draft + 1) % VOCAB if depth - 1 == wrong_at else draft
            if depth == 2:
                masks.append((len(rows), mask))
            rows.append(SampleRow(row * (1 + NUM_DRAFTS) + depth, row, 10 + depth, draft))
    output, state = run(start(), logits.reshape(-1, VOCAB), Sample(tuple(rows), True, tuple(masks)))
    num_right = 1 + (NUM_DRAFTS if wrong_at is None else wrong_at)
    counts = np.zeros((len(SAMPLED), VOCAB), int)
    for row, tokens in enumerate(expected):
        for depth, (token, logprob, top_ids) in enumerate(tokens[:num_right]):
            place = row * (1 + NUM_DRAFTS) + depth
            assert output.tokens[place] == token
            assert output.logprobs[place] == pytest.approx(logprob, abs=1e-6)
            np.testing.assert_array_equal(output.top_ids[place], top_ids)
            counts[row, token] += 1
    np.testing.assert_array_equal(state.counts, counts)
    assert wrong_at is not None or (np.asarray(alone.counts) == counts).all()
