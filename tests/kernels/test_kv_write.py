"""KV write for TPUs, interpreted with race detection, against a plain loop over tokens."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.kv_write import kv_write
from xlaserve_kernels.paged_attention import NULL_BLOCK, make_layout

B = 8


@dataclass(frozen=True)
class Case:
    """`rows`: (new tokens, context with them) of each row; `padding`: tokens beyond the last row's."""

    rows: tuple[tuple[int, int], ...]
    padding: int = 0
    num_kv_heads: int = 2
    head_dim: int = 8
    block_size: int = B


CASES = {
    "decodes at every place of a block": Case(tuple((1, n) for n in range(1, 2 * B + 2))),
    "chunks at every edge": Case(((B - 1, B - 1), (B, B), (B + 1, B + 1), (2, B + 1), (B, B + 1), (3 * B, 4 * B - 1))),
    "one row takes a batch no larger than the rows": Case(((0, 0), (4, 10), (0, 0), (0, 0))),
    "idle rows and padding": Case(((0, 0), (1, 5), (0, 0), (9, 12)), padding=6),
    "nothing at all": Case(((0, 0),), padding=4),
    "one token": Case(((1, 1),)),
    "three heads side by side": Case(((5, 9), (1, 2)), num_kv_heads=3, head_dim=64, block_size=16),
    "keys above values": Case(((5, 9), (1, 2)), head_dim=80),
    "two registers": Case(((5, 9), (1, 2)), num_kv_heads=1, head_dim=256),
}


def arrays(case: Case, num_blocks: int) -> tuple[np.ndarray, ...]:
    """(keys, values, slot_mapping, query_start_loc)"""
    rng = np.random.default_rng(0)
    query_lens = np.array([new for new, _ in case.rows])
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    width = 5
    tables = rng.permutation(np.arange(1, num_blocks))[: len(case.rows) * width].reshape(-1, width)
    slots = np.full(starts[-1] + case.padding, NULL_BLOCK * case.block_size, np.int32)
    for row, (new, context) in enumerate(case.rows):
        positions = np.arange(context - new, context)
        block = tables[row, positions // case.block_size]
        slots[starts[row] : starts[row + 1]] = block * case.block_size + positions % case.block_size
    keys, values = rng.standard_normal((2, len(slots), case.num_kv_heads, case.head_dim), np.float32)
    return keys, values, slots, starts


@pytest.mark.parametrize("name", CASES)
def test_pages(name):
    case, num_blocks = CASES[name], 100
    layout = make_layout(
        "pallas_tpu_interpret",
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        block_size=case.block_size,
        dtype="float32",
    )
    keys, values, slots, starts = arrays(case, num_blocks)
    pool = np.full(layout.shape(num_blocks), np.nan, np.float32)  # what is not written keeps its place
    written = kv_write(
        *map(jnp.asarray, (pool, keys, values, slots, starts)), backend="pallas_tpu_interpret", layout=layout
    )

    expected = pool.copy()
    parts = 1 if 2 * case.head_dim <= 128 else 2
    pages = expected.reshape(num_blocks, case.num_kv_heads, parts, case.block_size, -1)
    for token, slot in enumerate(slots):
        page = pages[slot // case.block_size, :, :, slot % case.block_size]  # [K, parts, L]
        page[...] = 0
        if parts == 1:
            page[:, 0, : case.head_dim], page[:, 0, case.head_dim : 2 * case.head_dim] = keys[token], values[token]
        else:
            page[:, 0, : case.head_dim], page[:, 1, : case.head_dim] = keys[token], values[token]
    np.testing.assert_array_equal(np.asarray(written)[NULL_BLOCK + 1 :], expected[NULL_BLOCK + 1 :])


GOOD = dict(pool=(3, 16, 128), keys=(4, 2, 8), values=(4, 2, 8), slot_mapping=(4,), query_start_loc=(3,))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("pool", (3, 8, 128)), ("keys", (4, 1, 8)), ("values", (5, 2, 8)), ("values", (4, 2, 16)), ("keys", (4, 16))],
)
def test_a_wrong_shape_is_named(name, shape):
    layout = make_layout("pallas_tpu", num_kv_heads=2, head_dim=8, block_size=8, dtype="float32")
    inputs = {
        key: jnp.zeros(value, jnp.int32 if key in ("slot_mapping", "query_start_loc") else jnp.float32)
        for key, value in (GOOD | {name: shape}).items()
    }
    with pytest.raises(ValueError, match=rf"{name} has shape .*must be"):
        kv_write(**inputs, backend="pallas_tpu", layout=layout)


def test_a_wrong_dtype_is_named():
    layout = make_layout("pallas_tpu", num_kv_heads=2, head_dim=8, block_size=8, dtype="float32")
    inputs = {key: jnp.zeros(value) for key, value in GOOD.items()}
    with pytest.raises(ValueError, match="slot_mapping is float32"):
        kv_write(**inputs, backend="pallas_tpu", layout=layout)
