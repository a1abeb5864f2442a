"""Buckets, packing and the resets' encoding: the shapes of the closed set of programs."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlaserve.runner.body import BodyShape, pack_body
from xlaserve.runner.buckets import MAX_TOKEN_BUCKETS, make_buckets
from xlaserve.runner.commands import Body, ResetRow, RowTokens
from xlaserve.runner.packing import DROPPED, Packing
from xlaserve.runner.row_state import apply_deltas, initial_row_state, pack_reset, reset_packing, reset_row


@settings(deadline=None, derandomize=True)
@given(
    max_num_seqs=st.integers(1, 1024),
    max_num_batched_tokens=st.integers(1, 16384),
    num_speculative_tokens=st.sampled_from([0, 0, 1, 5, 31]),
)
def test_buckets_hold_every_step_and_are_few(max_num_seqs, max_num_batched_tokens, num_speculative_tokens):
    buckets = make_buckets(max_num_seqs, max_num_batched_tokens, num_speculative_tokens)
    assert list(buckets.tokens) == sorted(set(buckets.tokens))
    assert len(buckets.tokens) <= MAX_TOKEN_BUCKETS
    assert len(buckets.outputs) <= (3 if num_speculative_tokens else 2)
    assert buckets.tokens[0] >= 4
    for num_tokens in {1, 2, 3, 4, 5, max_num_seqs, max_num_batched_tokens - 1, max_num_batched_tokens}:
        if 1 <= num_tokens <= max_num_batched_tokens:
            bucket = buckets.tokens_for(num_tokens)
            assert bucket >= num_tokens
            num_rows = min(num_tokens, max_num_seqs * (1 + num_speculative_tokens))
            assert num_rows <= buckets.outputs_for(num_rows) <= buckets.most_outputs


@pytest.mark.parametrize(
    ("limits", "tokens", "outputs"),
    [
        ((16, 256), (4, 8, 16, 48, 96, 160, 256), (4, 16)),
        ((1, 1), (4,), (4,)),
        ((7, 17), (4, 8, 17), (4, 7)),
        ((64, 2048), (4, 32, 64, 160, 320, 608, 1120, 2048), (4, 64)),
        ((1024, 16), (4, 16), (4, 1024)),
        ((16, 256, 7), (4, 8, 16, 48, 96, 160, 256), (4, 16, 128)),
        ((7, 64, 4), (4, 8, 32, 64), (4, 7, 40)),
        ((16, 32, 7), (4, 8, 16, 32), (4, 16, 32)),
    ],
)
def test_named_ladders(limits, tokens, outputs):
    buckets = make_buckets(*limits)
    assert (buckets.tokens, buckets.outputs) == (tokens, outputs)


def test_packing_returns_its_parts():
    packing = Packing((("a", (2, 3)), ("b", ()), ("c", (0,)), ("d", (4,))))
    buffer, parts = packing.new()
    parts["a"][1] = 5
    parts["b"][...] = 7
    parts["d"][:] = range(4)
    unpacked = packing.unpack(jnp.asarray(buffer))
    assert buffer.shape == (packing.size,) == (11,)
    np.testing.assert_array_equal(unpacked["a"], [[0, 0, 0], [5, 5, 5]])
    assert unpacked["b"] == 7
    np.testing.assert_array_equal(unpacked["d"], range(4))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 2**32])
def test_reset_rewrites_one_row_exactly(seed):
    packing = reset_packing(num_groups=2, table_width=4)
    state = initial_row_state(num_rows=3, num_groups=2, table_width=4, vocab_size=5)
    old = tuple(table + 9 for table in state.block_tables)
    command = ResetRow(1, ((1, 2), (3, 4, 5, 6)), 0.7, 40, 0.9, seed, 2)
    tables, sampling = reset_row(old, state.sampling, jnp.asarray(pack_reset(packing, command)), packing=packing)
    np.testing.assert_array_equal(tables[0], [[9] * 4, [1, 2, 0, 0], [9] * 4])
    np.testing.assert_array_equal(tables[1], [[9] * 4, [3, 4, 5, 6], [9] * 4])
    assert (sampling.temperature[1], sampling.top_p[1]) == (np.float32(0.7), np.float32(0.9))
    assert (sampling.top_k[1], sampling.choice_index[1]) == (40, 2)
    high, low = np.asarray(sampling.seed[1]).tolist()
    assert (high << 32) + low == seed % 2**64
    np.testing.assert_array_equal(sampling.temperature[jnp.array([0, 2])], 0)


def test_deltas_go_to_their_group_and_the_rest_is_dropped():
    tables = tuple(jnp.zeros((2, 3), jnp.int32) for _ in range(2))
    deltas = jnp.array([[0, 1, 2, 7], [1, 0, 0, 8], [DROPPED, 0, 0, 9]], jnp.int32)
    first, second = apply_deltas(tables, deltas)
    np.testing.assert_array_equal(first, [[0, 0, 0], [0, 0, 7]])
    np.testing.assert_array_equal(second, [[8, 0, 0], [0, 0, 0]])


def test_a_body_has_room_for_the_most_blocks_a_step_can_open():
    """Each row's tokens may end one block and begin another."""
    shape = BodyShape(num_tokens=8, num_rows=4, num_outputs=4, num_groups=2, block_size=4)
    rows = tuple(RowTokens(row, start=3, num_tokens=2, token_ids=(5, 6)) for row in range(4))
    deltas = tuple((group, row, column, 9) for group in range(2) for row in range(4) for column in range(1))
    packed = shape.packing.unpack(pack_body(shape, Body(rows, deltas, (0, 1, 2, 3))))
    np.testing.assert_array_equal(packed["token_ids"], [5, 6] * 4)
    assert (packed["deltas"][: len(deltas), 3] == 9).all()
    assert len(packed["deltas"]) >= len(deltas)
