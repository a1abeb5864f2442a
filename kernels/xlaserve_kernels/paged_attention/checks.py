"""Checks of arguments: of their shapes and dtypes, and, on the host, of what integers hold."""

import numpy as np
from jax import Array

from xlaserve_kernels.checks import expect_shape
from xlaserve_kernels.paged_attention.layout import KVPool


def check_tables(
    block_tables: np.ndarray,
    query_start_loc: np.ndarray,
    seq_lens: np.ndarray,
    num_blocks: int,
    block_size: int,
    num_tokens: int,
) -> None:
    """Raises ValueError naming the argument, the row and the allowed range.

    block_tables int [R, W], query_start_loc int [R + 1], seq_lens int [R]: see reference.py. num_blocks of the pool,
    num_tokens of the batch, padding included. Of the tables only the columns that a context reaches are looked at.
    """
    tables, starts, lens = (np.asarray(x) for x in (block_tables, query_start_loc, seq_lens))
    width = tables.shape[1]
    _expect_within("query_start_loc", starts, 0, num_tokens, f"the batch has {num_tokens} tokens")
    if starts[0]:
        raise ValueError(f"query_start_loc, row 0: it starts at {starts[0]}, must be 0")
    counts = np.diff(starts)
    for row in np.flatnonzero(counts < 0):
        raise ValueError(
            f"query_start_loc, row {row}: it ends at {starts[row + 1]}, must be in [{starts[row]}, {num_tokens}], "
            "not before it starts"
        )
    _expect_within("seq_lens", lens, 0, width * block_size, f"its table holds {width} blocks of {block_size}")
    for row in np.flatnonzero(counts > lens):
        raise ValueError(
            f"seq_lens, row {row}: {lens[row]}, must be in [{counts[row]}, {width * block_size}], "
            f"as the row has {counts[row]} queries"
        )
    live = np.arange(width) < -(-lens[:, None] // block_size)
    for row, column in np.argwhere(live & ((tables < 0) | (tables >= num_blocks))):
        raise ValueError(
            f"block_tables, row {row}, column {column}: {tables[row, column]}, must be in [0, {num_blocks - 1}], "
            f"as the pool has {num_blocks} blocks"
        )


def _expect_within(name: str, array: np.ndarray, low: int, high: int, why: str) -> None:
    for row in np.flatnonzero((array < low) | (array > high)):
        raise ValueError(f"{name}, row {row}: {array[row]}, must be in [{low}, {high}], as {why}")


def check_pool(kv_pool, layout, name: str = "kv_pool") -> None:
    """Raises ValueError naming the part of the pool whose shape or dtype is not the layout's."""
    if not isinstance(kv_pool, KVPool):
        raise ValueError(f"{name} is a {type(kv_pool).__name__}: must be a KVPool")
    spec = layout.pool_spec(kv_pool.pages.shape[0])
    for part, array, wanted in zip(KVPool._fields, kv_pool, spec, strict=True):
        if (array is None) != (wanted is None):
            state = "missing" if array is None else "given"
            raise ValueError(f"{name}.{part} are {state}: a pool of {layout.dtype} has {'them' if wanted else 'none'}")
        if array is not None:
            allowed = f"[num_blocks, {', '.join(map(str, wanted.shape[1:]))}]"
            expect_shape(f"{name}.{part}", array, array.shape == wanted.shape, allowed)
            expect_dtype(f"{name}.{part}", array, wanted.dtype.name)


def expect_dtype(name: str, array: Array, *allowed: str) -> None:
    if array.dtype.name not in allowed:
        raise ValueError(f"{name} has dtype {array.dtype.name}: must be {' or '.join(allowed)}")
