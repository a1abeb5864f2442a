"""The `sample` head: hidden rows in, tokens and their logprobs out. Parameters are arrays by row, never static.

Two programs per S: greedy rows only, and everything. A request's random numbers are those of
fold_in(fold_in(key(seed), choice_index), position): they depend neither on the batch nor on preemption or restart.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import compute_logits
from xlaserve.runner.commands import Sample
from xlaserve.runner.packing import DROPPED, Packing
from xlaserve.runner.row_state import SamplingState
from xlaserve.sampling_params import MAX_LOGPROBS

CANDIDATES = 128  # the nucleus is looked for among these before the whole vocabulary is sorted
LANES = 128  # vocabulary entries per block of the two-level draw


@flax.struct.dataclass
class SampleOutput:
    tokens: Array  # int32 [S]
    ok: Array  # bool [S], whether the logits were finite
    logprobs: Array  # float32 [S], raw; zeros unless asked for, as the next two
    top_ids: Array  # int32 [S, MAX_LOGPROBS]
    top_logprobs: Array  # float32 [S, MAX_LOGPROBS]


def sample_packing(num_outputs: int) -> Packing:
    rows = (num_outputs,)
    names = ("hidden_rows", "rows", "positions")
    return Packing((*((name, rows) for name in names), ("want_logprobs", ()), ("has_masks", ())))


def pack_sample(packing: Packing, command: Sample) -> np.ndarray:
    buffer, parts = packing.new()
    parts["rows"][:] = DROPPED
    for i, sample_row in enumerate(command.rows):
        parts["hidden_rows"][i] = sample_row.hidden_row
        parts["rows"][i] = sample_row.row
        parts["positions"][i] = sample_row.position
    parts["want_logprobs"][...] = command.want_logprobs
    parts["has_masks"][...] = bool(command.masks)
    return buffer


def mask_words(vocab_size: int) -> int:
    """W, the 32-bit words that hold a bit for each token."""
    return -(-vocab_size // 32)


def pack_masks(command: Sample, num_outputs: int, vocab_size: int) -> np.ndarray:
    """int32 [S, W]: bit i % 32 of word i // 32 is set where token i may be sampled."""
    masks = np.full((num_outputs, mask_words(vocab_size)), -1, np.int32)
    for index, mask in command.masks:
        masks[index] = mask
    return masks


def make_sample(config: ModelConfig, packing: Packing, *, greedy: bool) -> Callable[..., tuple[SampleOutput, Array]]:
    """The function to compile: (head_weight, hidden [S, D], sampling, last_tokens, packed, masks) ->
    (SampleOutput, last_tokens). To be donated: last_tokens.

    `greedy`: for steps whose rows all have temperature 0 and no mask; its function takes no masks either.
    """

    def sample(head_weight: Array, hidden: Array, sampling: SamplingState, last_tokens: Array, packed: Array, *masks):
        parts = packing.unpack(packed)
        logits = compute_logits(head_weight, config, hidden[parts["hidden_rows"]])  # float32 [S, V]
        best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        ok = jnp.isfinite(_pick(logits, best))  # argmax finds a NaN where there is one
        if greedy:
            tokens = best
        else:
            rows = jnp.minimum(parts["rows"], last_tokens.shape[0] - 1)
            mine = jax.tree.map(lambda array: array[rows], sampling)
            allowed = lax.cond(parts["has_masks"] != 0, _mask, lambda logits, masks: logits, logits, *masks)
            best = jnp.argmax(allowed, axis=-1).astype(jnp.int32)
            tokens = jnp.where(mine.temperature == 0, best, _draw(allowed, mine, parts["positions"]))
        logprobs, top_ids, top_logprobs = lax.cond(parts["want_logprobs"] != 0, _logprobs, _no_logprobs, logits, tokens)
        last_tokens = last_tokens.at[parts["rows"]].set(tokens, mode="drop")
        return SampleOutput(tokens, ok, logprobs, top_ids, top_logprobs), last_tokens

    return sample


def _mask(logits: Array, masks: Array) -> Array:
    """logits [S, V], masks int32 [S, W] -> logits, those whose bit is not set at minus infinity."""
    bits = (masks[:, :, None] >> jnp.arange(32)) & 1
    return jnp.where(bits.reshape(len(masks), -1)[:, : logits.shape[-1]] != 0, logits, -jnp.inf)


def _pick(values: Array, index: Array) -> Array:
    """values [S, n], index [S] -> [S]"""
    return jnp.take_along_axis(values, index[:, None], axis=-1)[:, 0]


def _logprobs(logits: Array, tokens: Array) -> tuple[Array, Array, Array]:
    total = jax.nn.logsumexp(logits, axis=-1)
    num_top = min(MAX_LOGPROBS, logits.shape[-1])
    top, top_ids = lax.top_k(logits, num_top)
    pad = ((0, 0), (0, MAX_LOGPROBS - num_top))
    return _pick(logits, tokens) - total, jnp.pad(top_ids, pad), jnp.pad(top - total[:, None], pad)


def _no_logprobs(logits: Array, tokens: Array) -> tuple[Array, Array, Array]:
    shape = (logits.shape[0], MAX_LOGPROBS)
    return jnp.zeros(shape[0], logits.dtype), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, logits.dtype)


def _draw(logits: Array, sampling: SamplingState, positions: Array) -> Array:
    """Samples each row from softmax(logits / temperature), cut to top_k and then to the nucleus of top_p."""
    temperature = jnp.where(sampling.temperature == 0, 1.0, sampling.temperature)
    scaled = logits / temperature[:, None]
    vocab_size = scaled.shape[-1]
    top_k = jnp.where(sampling.top_k == 0, vocab_size, jnp.minimum(sampling.top_k, vocab_size))
    cut = (top_k < vocab_size) | (sampling.top_p < 1)
    cutoff = lax.cond(jnp.any(cut), _cutoffs, _no_cutoffs, scaled, top_k, sampling.top_p)
    cutoff = jnp.where(cut, cutoff, -jnp.inf)
    weights = jnp.exp(scaled - scaled.max(axis=-1, keepdims=True))
    weights = jnp.where(scaled >= cutoff[:, None], weights, 0.0)
    return _inverse_cdf(weights, _uniforms(sampling, positions))


def _no_cutoffs(scaled: Array, top_k: Array, top_p: Array) -> Array:
    return jnp.full(scaled.shape[0], -jnp.inf)


def _cutoffs(scaled: Array, top_k: Array, top_p: Array) -> Array:
    """The smallest scaled logit kept in each row [S]; those tied with it are kept too."""
    vocab_size = scaled.shape[-1]
    num_candidates = min(CANDIDATES, vocab_size)
    total = jax.nn.logsumexp(scaled, axis=-1)
    candidates, _ = lax.top_k(scaled, num_candidates)
    mass = jnp.exp(candidates - total[:, None]).sum(axis=-1)
    enough = (top_k <= num_candidates) | ((top_k == vocab_size) & ((mass >= top_p) | (top_p >= 1)))
    return lax.cond(
        jnp.all(enough),
        lambda: _cutoffs_sorted(candidates, total, top_k, top_p, vocab_size),
        lambda: _cutoffs_sorted(jnp.sort(scaled, axis=-1, descending=True), total, top_k, top_p, vocab_size),
    )


def _cutoffs_sorted(ordered: Array, total: Array, top_k: Array, top_p: Array, vocab_size: int) -> Array:
    """ordered [S, n]: the n largest scaled logits, descending; total [S]: the logsumexp of all."""
    inside = jnp.arange(ordered.shape[-1]) < top_k[:, None]
    probabilities = jnp.where(inside, jnp.exp(ordered - total[:, None]), 0.0)
    ahead = jnp.cumsum(probabilities, axis=-1) - probabilities  # mass before each
    kept_mass = jnp.where(top_k == vocab_size, 1.0, probabilities.sum(axis=-1))
    kept = inside & (ahead < (top_p * kept_mass)[:, None])
    count = jnp.maximum(kept.sum(axis=-1), 1)
    return _pick(ordered, count - 1)


def _uniforms(sampling: SamplingState, positions: Array) -> Array:
    """Two numbers in [0, 1) per row, [S, 2]."""

    def one(words: Array, choice_index: Array, position: Array) -> Array:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, choice_index), position)
        return jax.random.uniform(key, (2,))

    return jax.vmap(one)(sampling.seed, sampling.choice_index, positions)


def _inverse_cdf(weights: Array, uniforms: Array) -> Array:
    """Draws an index of each row of weights [S, V] >= 0 in proportion, without a sum along the whole vocabulary:
    first a block of LANES entries, then an entry in it, each with a random number of its own."""
    rows, vocab_size = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -vocab_size % LANES))).reshape(rows, -1, LANES)
    block = _first_above(padded.sum(axis=-1), uniforms[:, 0])
    lane = _first_above(jnp.take_along_axis(padded, block[:, None, None], axis=1)[:, 0], uniforms[:, 1])
    return (block * LANES + lane).astype(jnp.int32)


def _first_above(weights: Array, uniform: Array) -> Array:
    """The first index whose running sum exceeds uniform * total: always one of positive weight, since uniform < 1."""
    running = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(running > (uniform * running[:, -1])[:, None], axis=-1)
