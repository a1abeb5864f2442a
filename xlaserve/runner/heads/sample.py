"""The `sample` head: hidden rows in, tokens and their logprobs out. Parameters are arrays by row, never static.

Two programs per S: rows that want the best token and nothing else, and everything. A request's random numbers are
those of fold_in(fold_in(key(seed), choice_index), position): they depend neither on the batch nor on preemption or
restart.
"""

from collections.abc import Callable, Mapping

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import compute_logits
from xlaserve.runner.commands import NO_DRAFT, Sample
from xlaserve.runner.heads.blocks import Blocks, in_blocks
from xlaserve.runner.heads.drafts import accepted, with_drafts
from xlaserve.runner.heads.draw import argmax, draw
from xlaserve.runner.heads.edits import edit
from xlaserve.runner.packing import DROPPED, Packing
from xlaserve.runner.row_state import RuleState, SamplingState, mask_words
from xlaserve.sampling_params import MAX_LOGPROBS

_SLICED_ROWS = 8  # at most


@flax.struct.dataclass
class SampleOutput:
    tokens: Array  # int32 [S]; -1: none was allowed
    ok: Array  # bool [S], whether the logits were finite
    logprobs: Array  # float32 [S], of the sampled token; zeros unless asked for, as the next two
    top_ids: Array  # int32 [S, MAX_LOGPROBS]
    top_logprobs: Array  # float32 [S, MAX_LOGPROBS]


def sample_packing(num_outputs: int) -> Packing:
    rows = (num_outputs,)
    names = ("hidden_rows", "rows", "positions", "drafts")
    return Packing((*((name, rows) for name in names), ("want_logprobs", ()), ("has_masks", ())))


def pack_sample(packing: Packing, command: Sample) -> np.ndarray:
    buffer, parts = packing.new()
    parts["rows"][:] = parts["hidden_rows"][:] = DROPPED
    parts["drafts"][:] = NO_DRAFT
    for i, sample_row in enumerate(command.rows):
        parts["hidden_rows"][i] = sample_row.hidden_row
        parts["rows"][i] = sample_row.row
        parts["positions"][i] = sample_row.position
        parts["drafts"][i] = sample_row.draft
    parts["want_logprobs"][...] = command.want_logprobs
    parts["has_masks"][...] = bool(command.masks)
    return buffer


def pack_masks(command: Sample, num_outputs: int, vocab_size: int) -> np.ndarray:
    """int32 [S, W]: bit i % 32 of word i // 32 is set where token i may be sampled."""
    masks = np.full((num_outputs, mask_words(vocab_size)), -1, np.int32)
    for index, mask in command.masks:
        masks[index] = mask
    return masks


def make_sample(
    config: ModelConfig,
    packing: Packing,
    *,
    greedy: bool,
    processed_logprobs: bool = False,
    num_drafts: int = 0,
    rows_per_tile: int = 1,
    axis: str | None = None,
) -> Callable[..., tuple]:
    """The function to compile: (head_weight, hidden [any, D], sampling, rules, counts, last_tokens, packed, masks) ->
    (SampleOutput, counts, last_tokens). To be donated: counts and last_tokens.

    greedy: for steps whose rows all have temperature 0, no rules and no mask; then it is (head_weight, hidden,
    last_tokens, packed) -> (SampleOutput, last_tokens). processed_logprobs: of the distribution that is drawn from,
    with rules, masks, temperature and cuts; else the model's own. num_drafts: of a row, at most. rows_per_tile: as the
    platform keeps the logits (`blocks.ROWS_PER_TILE`); nothing else depends on it. axis: as `compute_logits` takes it.
    """

    def logits_of(head_weight: Array, hidden: Array, parts: Mapping[str, Array]) -> Array:
        mine = hidden.at[parts["hidden_rows"]].get(mode="fill", fill_value=0)
        return compute_logits(head_weight, config, mine, axis)  # float32 [S, V]

    def sample_greedy(head_weight: Array, hidden: Array, last_tokens: Array, packed: Array):
        parts = packing.unpack(packed)
        logits = logits_of(head_weight, hidden, parts)
        blocks = in_blocks(logits, rows_per_tile)
        tokens, best = argmax(blocks)
        logprobs = _logprobs(parts["want_logprobs"], logits, blocks, tokens)
        output = SampleOutput(tokens, jnp.isfinite(best), *logprobs)
        return output, last_tokens.at[_first_rows(parts)].set(tokens, mode="drop")

    def sample(
        head_weight: Array, hidden: Array, sampling: SamplingState, rules: RuleState, counts: Array,
        last_tokens: Array, packed: Array, masks: Array,
    ):  # fmt: skip
        parts = packing.unpack(packed)
        logits = logits_of(head_weight, hidden, parts)
        blocks = in_blocks(logits, rows_per_tile)
        positions = parts["positions"]
        rows = jnp.minimum(parts["rows"], last_tokens.shape[0] - 1)
        mine = jax.tree.map(lambda array: array[rows], sampling)

        def choose(edited: Array, its_blocks: Blocks) -> tuple[Array, ...]:
            drawn = draw(edited, its_blocks, mine, positions)
            tokens = jnp.maximum(drawn.tokens, 0)
            if processed_logprobs:
                kept = jnp.where(edited >= drawn.cutoff[:, None], edited / drawn.scale[:, None], -jnp.inf)
                logprobs = _logprobs(parts["want_logprobs"], kept, in_blocks(kept, rows_per_tile), tokens)
            else:
                logprobs = _logprobs(parts["want_logprobs"], logits, blocks, tokens)
            return drawn.tokens, *logprobs

        def choose_edited() -> tuple[Array, ...]:
            my_rules, my_counts = jax.tree.map(lambda array: _rows_of(array, rows), (rules, counts))
            my_counts = with_drafts(my_counts, parts["drafts"], num_drafts)
            edited = edit(logits, mine, my_rules, my_counts, positions, masks)
            return choose(edited, in_blocks(edited, rows_per_tile))

        has_rules = mine.has_rules & (parts["rows"] != DROPPED)
        any_edit = jnp.any(has_rules) | (parts["has_masks"] != 0)
        with jax.named_scope("rules"):
            tokens, *logprobs = lax.cond(any_edit, choose_edited, lambda: choose(logits, blocks))
        best = blocks.peaks.max(axis=-1)  # of the model's: a NaN shows whether masked or not
        output = SampleOutput(tokens, jnp.isfinite(best), *logprobs)
        counted = has_rules & accepted(parts["drafts"], tokens) & (tokens >= 0)
        counts = counts.at[jnp.where(counted, rows, DROPPED), tokens].add(1, mode="drop")
        return output, counts, last_tokens.at[_first_rows(parts)].set(tokens, mode="drop")

    return sample_greedy if greedy else sample


def _first_rows(parts: Mapping[str, Array]) -> Array:
    """int32 [S]: the rows, but one of several with drafts: what these end with the host knows before it is needed."""
    return jnp.where(parts["drafts"] == NO_DRAFT, parts["rows"], DROPPED)


def _rows_of(array: Array, rows: Array) -> Array:
    """array [R, n], rows int32 [S] -> [S, n]. Few of them are sliced one by one: of a large vocabulary XLA's gather for
    TPUs would take more of their vector memory than there is."""
    if len(rows) > _SLICED_ROWS:
        return array[rows]
    return jnp.stack([lax.dynamic_index_in_dim(array, row, keepdims=False) for row in rows])


def _logprobs(wanted: Array, logits: Array, blocks: Blocks, tokens: Array) -> tuple[Array, Array, Array]:
    """Of the tokens [S], and the best tokens [S, MAX_LOGPROBS] with theirs; zeros unless `wanted`."""
    num_rows, vocab_size = logits.shape
    num_top = min(MAX_LOGPROBS, vocab_size)
    pad = ((0, 0), (0, MAX_LOGPROBS - num_top))

    def compute() -> tuple[Array, Array, Array]:
        total = blocks.log_total()
        top, top_ids = blocks.largest(num_top)
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
        return chosen - total, jnp.pad(top_ids, pad), jnp.pad(top - total[:, None], pad)

    def nothing() -> tuple[Array, Array, Array]:
        none = jnp.zeros((num_rows, MAX_LOGPROBS), logits.dtype)
        return none[:, 0], none.astype(jnp.int32), none

    with jax.named_scope("logprobs"):
        return lax.cond(wanted != 0, compute, nothing)
