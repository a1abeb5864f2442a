"""Logits in blocks of LANES entries, whose maxima and sums are found without another copy of the logits."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

LANES = 128
ROWS_PER_TILE = {"tpu": 8}  # by platform, else 1: there an array's memory is tiles of 8 rows by LANES entries


class Blocks(NamedTuple):
    """values [S / G, B, G, LANES]: entry [i, b, g] is block b of row i * G + g. peaks [S, B]: the largest of each.

    With G rows per tile it is the very memory of the logits [S, V]; in another order TPUs copy all of them, twice.
    """

    values: Array
    peaks: Array

    def per_row(self, values: Array) -> Array:
        """[S] -> what broadcasts with `values`."""
        return values.reshape(-1, 1, self.values.shape[2], 1)

    def reduce(self, function: Callable, values: Array | None = None) -> Array:
        """[S, B], `function` of each block: jnp.max or jnp.sum. values: others than the logits, of their shape."""
        return _of_rows(function(self.values if values is None else values, axis=-1))

    def pick(self, blocks: Array) -> Array:
        """blocks int32 [S] -> [S, LANES]"""
        return self.pick_several(blocks[:, None])[:, 0]

    def pick_several(self, blocks: Array) -> Array:
        """blocks int32 [S, n] -> [S, n, LANES]"""
        groups, _, rows, _ = self.values.shape
        index = blocks.reshape(groups, rows, -1).swapaxes(1, 2)
        return _of_rows(jnp.take_along_axis(self.values, index[..., None], axis=1))

    def largest(self, count: int) -> tuple[Array, Array]:
        """The `count` largest logits of each row, descending, and their tokens: [S, count] each. The first of equals
        comes first. No more than that many blocks have to be looked at: those with the largest peaks."""
        num_rows, num_blocks = self.peaks.shape
        chosen = jnp.sort(lax.top_k(self.peaks, min(count, num_blocks))[1], axis=-1)
        # Slices of the values must not meet the top_k: XLA's CPU backend would know it no more, and sort all. A barrier
        # each, for one around both is more than XLA's partitioner of programs for several devices can take.
        found = lax.top_k(self.pick_several(chosen).reshape(num_rows, -1), count)
        values, places = map(lax.optimization_barrier, found)
        tokens = jnp.take_along_axis(chosen, places // LANES, axis=1) * LANES + places % LANES
        return values, tokens.astype(jnp.int32)

    def log_total(self) -> Array:
        """[S]: the logarithm of the sum of exp(logits)."""
        best = self.peaks.max(axis=-1)
        best = jnp.where(jnp.isfinite(best), best, 0.0)
        return best + jnp.log(self.reduce(jnp.sum, jnp.exp(self.values - self.per_row(best))).sum(axis=-1))


def _of_rows(values: Array) -> Array:
    """[S / G, n, G, ...] -> [S, n, ...]"""
    groups, n, rows, *rest = values.shape
    return values.swapaxes(1, 2).reshape(groups * rows, n, *rest)


def in_blocks(logits: Array, rows_per_tile: int) -> Blocks:
    """logits [S, V]; what is missing of the last block is minus infinity."""
    rows = rows_per_tile if len(logits) % rows_per_tile == 0 else 1
    padded = jnp.pad(logits, ((0, 0), (0, -logits.shape[-1] % LANES)), constant_values=-jnp.inf)
    values = padded.reshape(len(logits) // rows, rows, -1, LANES).swapaxes(1, 2)
    # Behind a barrier, or a maximum of the peaks becomes one of all the logits, which XLA for GPUs reads again for it.
    return Blocks(values, lax.optimization_barrier(_of_rows(values.max(axis=-1))))
