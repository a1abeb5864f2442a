"""KV write for TPUs, interpreted with race detection, against a plain loop over tokens."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.kv_write import kv_write
from xlaserve_kernels.paged_attention import NULL_BLOCK, KVPool, make_layout
from xlaserve_kernels.quantization import quantize

from tests.kernels.ragged import full_of_nan

B = 8


@dataclass(frozen=True)
class Case:
    """`rows`: (new tokens, context with them) of each row; `padding`: tokens beyond the last row's."""

    rows: tuple[tuple[int, int], ...]
    padding: int = 0
    kv_dtype: str = "float32"
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
    "bfloat16": Case(((5, 9), (1, 2)), kv_dtype="bfloat16", head_dim=128),
    "int8": Case(((5, 9), (1, 2)), kv_dtype="int8", num_kv_heads=3, head_dim=64, block_size=16),
    "fp8 of sixteen heads": Case(((5, 9), (0, 0), (1, 2)), kv_dtype="float8_e4m3fn", num_kv_heads=16, head_dim=80),
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
    """What is written equals keys and values, quantised where they are, and nothing else changes."""
    case, num_blocks = CASES[name], 100
    layout = make_layout(
        "pallas_tpu_interpret",
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        block_size=case.block_size,
        dtype=case.kv_dtype,
    )
    keys, values, slots, starts = arrays(case, num_blocks)
    old = full_of_nan(layout, num_blocks)
    written = kv_write(
        old, *map(jnp.asarray, (keys, values, slots, starts)), backend="pallas_tpu_interpret", layout=layout
    )

    parts = 1 if 2 * case.head_dim <= 128 else 2
    pages, scales = (None if part is None else np.array(part) for part in old)
    heads = pages.reshape(num_blocks, case.num_kv_heads, parts, case.block_size, -1)
    for token, slot in enumerate(slots):
        block, offset = divmod(slot, case.block_size)
        for index, vectors in enumerate((keys[token], values[token])):
            if scales is not None:
                vectors, steps = (np.asarray(part) for part in quantize(jnp.asarray(vectors), case.kv_dtype))
                flat = scales[block].reshape(-1)[: 2 * case.num_kv_heads * case.block_size]
                flat.reshape(case.num_kv_heads, 2, case.block_size)[:, index, offset] = steps
            place = heads[block, :, 0 if parts == 1 else index, offset]  # [K, L]
            place[:, index * case.head_dim if parts == 1 else 0 :] = 0
            start = index * case.head_dim if parts == 1 else 0
            place[:, start : start + case.head_dim] = vectors
    np.testing.assert_array_equal(_live(written.pages), _live(pages))
    if scales is not None:
        used = 2 * case.num_kv_heads * case.block_size
        np.testing.assert_array_equal(_live(written.scales)[:, :used], _live(scales)[:, :used])


def _live(array) -> np.ndarray:
    """All blocks but the null block, one below the other, as integers: NaN equals itself."""
    blocks = np.asarray(array)[NULL_BLOCK + 1 :]
    return blocks.reshape(len(blocks), -1).view(f"u{blocks.dtype.itemsize}")


GOOD = dict(keys=(4, 2, 8), values=(4, 2, 8), slot_mapping=(4,), query_start_loc=(3,))
LAYOUT = make_layout("pallas_tpu", num_kv_heads=2, head_dim=8, block_size=8, dtype="float32")


def write(pool=(3, 16, 128), integers="int32", **changed) -> None:
    inputs = {
        key: jnp.zeros(shape, integers if len(shape) == 1 else "float32") for key, shape in (GOOD | changed).items()
    }
    kv_write(KVPool(jnp.zeros(pool), None), **inputs, backend="pallas_tpu", layout=LAYOUT)


@pytest.mark.parametrize(
    ("name", "shape"), [("keys", (4, 1, 8)), ("values", (5, 2, 8)), ("values", (4, 2, 16)), ("keys", (4, 16, 1))]
)
def test_a_wrong_shape_is_named(name, shape):
    with pytest.raises(ValueError, match=rf"{name} has shape .*must be"):
        write(**{name: shape})


def test_a_wrong_pool_is_named():
    with pytest.raises(ValueError, match=r"pool.pages has shape \[3, 8, 128\]: must be \[num_blocks, 16, 128\]"):
        write(pool=(3, 8, 128))


def test_a_wrong_dtype_is_named():
    with pytest.raises(ValueError, match="slot_mapping is float32"):
        write(integers="float32")
