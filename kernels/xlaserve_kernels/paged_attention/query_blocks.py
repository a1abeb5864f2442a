"""Cuts a ragged batch into query blocks, and tells which chunks of keys each has to see."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

MASKED = -1e30  # not -inf: a tile with no visible key for some query must not make NaN


@dataclass(frozen=True)
class QueryBlocks:
    """Where each query block lies; all arrays int32 [Q]. A tile is one query block times one chunk of keys."""

    token: Array  # its first token
    length: Array  # live queries, 0..Bq
    position: Array  # of its first query, in its row
    row: Array
    first_chunk: Array
    tiles_before: Array  # [Q + 1] live tiles of all earlier query blocks


def find_query_blocks(
    query_start_loc: Array,
    seq_lens: Array,
    *,
    num_tokens: int,
    query_block: int,
    chunk: int,
    sliding_window: int | None,
) -> QueryBlocks:
    """Blocks of up to `query_block` consecutive queries of one row, for query_start_loc [R + 1] and seq_lens [R].

    Chunks of `chunk` keys that lie wholly before the window of a block's first query are none of its tiles.
    """
    num_rows = seq_lens.shape[0]
    query_lens = query_start_loc[1:] - query_start_loc[:-1]
    per_row = (query_lens + query_block - 1) // query_block
    before = jnp.cumsum(per_row)  # [R]
    # Each row's last block may be partly filled, hence the second term.
    limit = num_tokens if query_block == 1 else num_tokens // query_block + min(num_rows, num_tokens)
    index = jnp.arange(limit)
    row = jnp.minimum(jnp.searchsorted(before, index, side="right", method="compare_all"), num_rows - 1)
    offset = (index - (before - per_row)[row]) * query_block
    length = jnp.clip(query_lens[row] - offset, 0, query_block)
    length = jnp.where(index < before[-1], length, 0)
    position = (seq_lens - query_lens)[row] + offset
    oldest = 0 if sliding_window is None else jnp.maximum(position - sliding_window + 1, 0)
    first_chunk = oldest // chunk + jnp.zeros_like(position)
    end_chunk = (position + length + chunk - 1) // chunk
    tiles = jnp.where(length > 0, end_chunk - first_chunk, 0)
    tiles_before = jnp.concatenate([jnp.zeros(1, tiles.dtype), jnp.cumsum(tiles)])
    return QueryBlocks(query_start_loc[row] + offset, length, position, row, first_chunk, tiles_before)
