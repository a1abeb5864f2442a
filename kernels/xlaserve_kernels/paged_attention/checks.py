"""What can be said of attention's arguments only by their values, on the host."""

import numpy as np


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
