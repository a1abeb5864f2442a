"""Draws a token of each row from its logits: temperature, top_k, top_p and min_p, in transformers' order.

The vocabulary is never sorted. It is read in blocks of LANES entries, whose maxima and sums are enough to find the best
token, to draw from the whole, and to find the CANDIDATES best. What is cut more widely than those are is cut by
bisection over the logits' bits. Whether a row needs that is its own affair: what it draws does not depend on others.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from xlaserve.runner.heads.blocks import LANES, Blocks
from xlaserve.runner.row_state import SamplingState

CANDIDATES = 128


class Drawn(NamedTuple):
    tokens: Array  # int32 [S]; -1 where all logits are minus infinity
    cutoff: Array  # float32 [S], the smallest logit that could be drawn; minus infinity where nothing is cut
    scale: Array  # float32 [S], the temperature; 1 for greedy rows


class _Row(NamedTuple):
    """What the rows' distributions are: exp((logit - best) / scale) each, with top_k, top_p and min_p as arrays [S]."""

    best: Array
    scale: Array
    top_k: Array  # V: off
    top_p: Array
    floor: Array  # the smallest logit that min_p keeps

    def weights(self, logits: Array) -> Array:
        """logits [S, n] -> [S, n], 1 for the best."""
        return jnp.exp((logits - self.best[:, None]) / self.scale[:, None])

    def weights_of(self, blocks: Blocks) -> Array:
        """In the shape of their values."""
        return jnp.exp((blocks.values - blocks.per_row(self.best)) / blocks.per_row(self.scale))


def argmax(blocks: Blocks) -> tuple[Array, Array]:
    """The first of the best tokens, int32 [S], and its logit [S]; a NaN wins."""
    block = jnp.argmax(blocks.peaks, axis=-1)
    lanes = blocks.pick(block)
    lane = jnp.argmax(lanes, axis=-1)
    return (block * LANES + lane).astype(jnp.int32), _pick(lanes, lane)


def draw(logits: Array, blocks: Blocks, sampling: SamplingState, positions: Array) -> Drawn:
    """logits float32 [S, V], and the same in blocks; sampling: of these rows, [S] each; positions int32 [S]: name the
    random numbers."""
    vocab_size = logits.shape[-1]
    first, best = argmax(blocks)
    greedy = sampling.temperature == 0
    scale = jnp.where(greedy, 1.0, sampling.temperature)
    top_k = jnp.where(sampling.top_k == 0, vocab_size, jnp.minimum(sampling.top_k, vocab_size))
    row = _Row(jnp.where(jnp.isfinite(best), best, 0.0), scale, top_k, sampling.top_p, jnp.full_like(best, -jnp.inf))
    row = row._replace(floor=row.best + scale * jnp.log(sampling.min_p))
    uniforms = _uniforms(sampling, positions)
    masses = blocks.reduce(jnp.sum, row.weights_of(blocks))
    cut = ~greedy & ((top_k < vocab_size) | (sampling.top_p < 1) | (sampling.min_p > 0))
    whole = _draw_from_blocks(blocks, masses, uniforms, row, -jnp.inf)
    with jax.named_scope("cut"):
        some, cutoff = lax.cond(
            jnp.any(cut),
            lambda: _draw_cut(logits, blocks, masses.sum(axis=-1), cut, uniforms, row),
            lambda: (whole, jnp.full_like(best, -jnp.inf)),
        )
    tokens = jnp.where(greedy, first, jnp.where(cut, some, whole))
    return Drawn(jnp.where(best == -jnp.inf, -1, tokens), jnp.where(cut, cutoff, -jnp.inf), scale)


def _pick(values: Array, index: Array) -> Array:
    """values [S, n], index [S] -> [S]"""
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _draw_cut(
    logits: Array, blocks: Blocks, total: Array, cut: Array, uniforms: Array, row: _Row
) -> tuple[Array, Array]:
    """Tokens and cutoffs of the rows that `cut` names. total [S]: the weights of all tokens."""
    values, ids = blocks.largest(CANDIDATES)
    cutoff = jnp.maximum(_cutoff(values, total, row, logits.shape[-1]), row.floor)
    num_candidates, last = values.shape[-1], values[:, -1]
    told = (row.top_k <= num_candidates) | (row.top_k == logits.shape[-1])  # the mass that top_p is a share of
    # All that is as good as the cutoff must be among the candidates.
    enough = (told & (cutoff > last)) | (last == -jnp.inf) | (num_candidates >= logits.shape[-1])
    weights = jnp.where(values >= cutoff[:, None], row.weights(values), 0.0)
    tokens = _pick(ids, _first_above(weights, uniforms[:, 0]))

    def widely() -> tuple[Array, Array]:
        wide_cutoff = jnp.maximum(_bisected_cutoff(logits, total, cut & ~enough, row), row.floor)
        kept = jnp.where(blocks.values >= blocks.per_row(wide_cutoff), row.weights_of(blocks), 0.0)
        wide = _draw_from_blocks(blocks, blocks.reduce(jnp.sum, kept), uniforms, row, wide_cutoff[:, None])
        return jnp.where(enough, tokens, wide), jnp.where(enough, cutoff, wide_cutoff)

    with jax.named_scope("narrow"):
        return lax.cond(jnp.all(enough | ~cut), lambda: (tokens, cutoff), widely)


def _cutoff(values: Array, total: Array, row: _Row, vocab_size: int) -> Array:
    """The smallest logit that top_k and then top_p keep, [S], as far as `values` [S, n], descending, tell.

    What is tied with the k-th is kept, as is what is tied with the last of the nucleus.
    """
    kth = _pick(values, jnp.minimum(row.top_k, values.shape[-1]) - 1)
    inside = (values >= kth[:, None]) | (row.top_k == vocab_size)[:, None]
    weights = jnp.where(inside, row.weights(values), 0.0)
    mass = jnp.where(row.top_k == vocab_size, total, weights.sum(axis=-1))
    ahead = jnp.cumsum(weights, axis=-1) - weights
    kept = inside & ((ahead < (row.top_p * mass)[:, None]) | (row.top_p >= 1)[:, None])
    return _pick(values, jnp.maximum(kept.sum(axis=-1), 1) - 1)


def _bisected_cutoff(logits: Array, total: Array, wanted: Array, row: _Row) -> Array:
    """As `_cutoff`, for the rows `wanted`, from all logits [S, V]; each search reads them 32 times."""
    vocab_size = logits.shape[-1]
    keys = _ordered_bits(logits)

    def search(enough: Callable[[Array], Array]) -> Array:
        """The largest key [S] for which, with bool [S, V] telling what is not below it, `enough` [S] holds."""

        def set_bit(step: Array, key: Array) -> Array:
            longer = key | (jnp.uint32(1) << (31 - step).astype(jnp.uint32))
            return jnp.where(enough(keys >= longer[:, None]), longer, key)

        return lax.fori_loop(0, 32, set_bit, jnp.zeros(len(logits), jnp.uint32))

    no_key = jnp.zeros(len(logits), jnp.uint32)
    limited = wanted & (row.top_k < vocab_size)
    kth = lax.cond(jnp.any(limited), lambda: search(lambda kept: kept.sum(axis=-1) >= row.top_k), lambda: no_key)
    kth = jnp.where(limited, kth, no_key)

    def nucleus() -> Array:
        weights = jnp.where(keys >= kth[:, None], row.weights(logits), 0.0)
        mass = jnp.where(limited, weights.sum(axis=-1), total)
        return search(lambda kept: jnp.where(kept, weights, 0.0).sum(axis=-1) >= row.top_p * mass)

    in_nucleus = wanted & (row.top_p < 1)
    last = lax.cond(jnp.any(in_nucleus), nucleus, lambda: no_key)
    key = jnp.maximum(kth, jnp.where(in_nucleus, last, no_key))
    return jnp.where(key == no_key, -jnp.inf, _from_ordered_bits(key))


def _ordered_bits(values: Array) -> Array:
    """uint32 that order as the floats do."""
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _from_ordered_bits(keys: Array) -> Array:
    bits = jnp.where(keys >> 31 == 1, keys & jnp.uint32((1 << 31) - 1), ~keys)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _uniforms(sampling: SamplingState, positions: Array) -> Array:
    """Two numbers in [0, 1) per row, [S, 2]."""

    def one(words: Array, choice_index: Array, position: Array) -> Array:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, choice_index), position)
        return jax.random.uniform(key, (2,))

    return jax.vmap(one)(sampling.seed, sampling.choice_index, positions)


def _draw_from_blocks(blocks: Blocks, masses: Array, uniforms: Array, row: _Row, cutoff: Array | float) -> Array:
    """A token of each row in proportion to its weight, without a sum along the whole vocabulary: first a block, by the
    blocks' weights `masses`, then an entry in it that is not below `cutoff`, each with a random number of its own."""
    block = _first_above(masses, uniforms[:, 0])
    lanes = blocks.pick(block)
    lane = _first_above(jnp.where(lanes >= cutoff, row.weights(lanes), 0.0), uniforms[:, 1])
    return (block * LANES + lane).astype(jnp.int32)


def _first_above(weights: Array, uniform: Array) -> Array:
    """The first index whose running sum exceeds uniform * total; always one of positive weight.

    A running sum is not summed from left to right: by its rounding it may even rise where there is no weight.
    """
    running = jnp.cumsum(weights, axis=-1)
    above = (running > (uniform * running[:, -1])[:, None]) & (weights > 0)
    return jnp.where(above.any(axis=-1), jnp.argmax(above, axis=-1), jnp.argmax(weights, axis=-1))
