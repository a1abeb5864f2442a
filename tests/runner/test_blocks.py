"""Logits in blocks: what is found in them, and that the order that a TPU wants its rows in changes no draw."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlaserve.runner.heads.blocks import LANES, in_blocks
from xlaserve.runner.heads.draw import argmax, draw
from xlaserve.runner.row_state import initial_row_state

RNG = np.random.default_rng(0)


def some_logits(num_rows: int, vocab_size: int) -> np.ndarray:
    """With ties, and a row that allows nothing."""
    logits = np.round(RNG.normal(size=(num_rows, vocab_size)) * 3, 1).astype(np.float32) + 0  # no -0.0: top_k orders it
    logits[-1] = -np.inf
    return logits


@pytest.mark.parametrize("rows_per_tile", [1, 8])
@pytest.mark.parametrize(("num_rows", "vocab_size"), [(8, 128), (16, 1000), (4, 300), (12, 257)])
def test_blocks_are_those_of_the_rows(num_rows, vocab_size, rows_per_tile):
    logits = some_logits(num_rows, vocab_size)
    blocks = in_blocks(jnp.asarray(logits), rows_per_tile)
    assert blocks.values.shape[2] == (rows_per_tile if num_rows % rows_per_tile == 0 else 1)
    padded = np.pad(logits, ((0, 0), (0, -vocab_size % LANES)), constant_values=-np.inf).reshape(num_rows, -1, LANES)
    rows = np.arange(num_rows)
    np.testing.assert_array_equal(blocks.reduce(jnp.max), padded.max(-1))
    doubled = blocks.reduce(jnp.sum, blocks.per_row(jnp.asarray(rows)) + 0 * jnp.isfinite(blocks.values))
    np.testing.assert_array_equal(doubled, np.tile(LANES * rows[:, None], (1, padded.shape[1])))
    index = RNG.integers(0, padded.shape[1], (num_rows, 3))
    np.testing.assert_array_equal(blocks.pick_several(jnp.asarray(index)), padded[rows[:, None], index])
    np.testing.assert_array_equal(blocks.pick(jnp.asarray(index[:, 0])), padded[rows, index[:, 0]])


@pytest.mark.parametrize("vocab_size", [300, 20_000])
def test_draws_do_not_depend_on_how_rows_are_kept(vocab_size):
    num_rows = 16
    logits, positions = jnp.asarray(some_logits(num_rows, vocab_size)), jnp.arange(num_rows)
    sampling = initial_row_state(num_rows, 1, 1, vocab_size).sampling
    sampling = replace(
        sampling,
        temperature=jnp.tile(jnp.array([0.0, 1.0, 0.7, 3.0], jnp.float32), 4),
        top_k=jnp.tile(jnp.array([0, 5, 150, 0, 200], jnp.int32), 4)[:num_rows],
        top_p=jnp.tile(jnp.array([1.0, 0.9, 0.999], jnp.float32), 6)[:num_rows],
        min_p=jnp.tile(jnp.array([0.0, 0.0, 0.0, 0.05], jnp.float32), 4),
    )
    found = [jax.jit(draw)(logits, in_blocks(logits, n), sampling, positions) for n in (1, 8)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[0].tokens[-1] == -1
    assert len(set(found[0].tokens.tolist())) > 10
    for one, other in zip(*(argmax(in_blocks(logits, n)) for n in (1, 8)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rows_per_tile", [1, 8])
@pytest.mark.parametrize("count", [1, 20, 128])
@pytest.mark.parametrize("vocab_size", [128, 257, 5000])
def test_the_largest_are_those_of_the_whole_row(vocab_size, count, rows_per_tile):
    """Ties are many, and go to the first; minus infinity of the last block's padding is no token."""
    logits = some_logits(8, vocab_size)
    logits[0, 3:] = -np.inf
    blocks = in_blocks(jnp.asarray(logits), rows_per_tile)
    values, tokens = blocks.largest(count)
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, order, axis=-1))
    np.testing.assert_allclose(blocks.log_total(), np.logaddexp.reduce(logits.astype(np.float64), -1), rtol=1e-6)
