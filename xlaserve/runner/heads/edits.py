"""What requests ask of their logits before anything is drawn: bias, penalties, and tokens that are not allowed.

The order is transformers' and vLLM's: bias, repetition, frequency and presence penalty; then what is not allowed.
"""

import jax.numpy as jnp
from jax import Array

from xlaserve.runner.row_state import RuleState, SamplingState


def edit(
    logits: Array, sampling: SamplingState, rules: RuleState, counts: Array, positions: Array, masks: Array
) -> Array:
    """All of these rows: logits float32 [S, V]; sampling, rules and counts by row; masks int32 [S, W] -> [S, V]."""
    vocab_size = logits.shape[-1]
    has_rules = sampling.has_rules[:, None]  # else the row's bias is of a request before
    logits = logits + jnp.where(has_rules, rules.bias, 0.0)
    penalty = sampling.repetition_penalty[:, None]
    seen = (counts > 0) | _bits(rules.prompt, vocab_size)
    logits = jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)
    logits -= sampling.frequency_penalty[:, None] * counts
    logits -= sampling.presence_penalty[:, None] * (counts > 0)
    held_back = (positions < sampling.first_stop)[:, None]
    return jnp.where(_bits(masks & jnp.where(held_back, ~rules.stops, -1), vocab_size), logits, -jnp.inf)


def _bits(words: Array, vocab_size: int) -> Array:
    """int32 [S, W] -> bool [S, V]: token i is bit i % 32 of word i // 32."""
    bits = (words[:, :, None] >> jnp.arange(32)) & 1
    return bits.reshape(len(words), -1)[:, :vocab_size] != 0
