"""What drafts make of a step's sample rows: those of one request follow each other, each after a draft of its own.

`drafts` int32 [S]: the token before each row's position if that is a draft, else NO_DRAFT, as the first of a request's
rows and all rows without drafts have it.
"""

import jax.numpy as jnp
from jax import Array, lax

from xlaserve.runner.commands import NO_DRAFT
from xlaserve.runner.packing import DROPPED


def _num_before(drafts: Array) -> Array:
    """int32 [S]: how many drafts come before each row's position."""
    place = jnp.arange(len(drafts), dtype=jnp.int32)
    return place - lax.cummax(jnp.where(drafts == NO_DRAFT, place, 0))


def accepted(drafts: Array, tokens: Array) -> Array:
    """bool [S]: whether each draft up to the row is what was sampled in its place. tokens int32 [S]: the sampled."""
    wrong = (drafts != NO_DRAFT) & (drafts != jnp.roll(tokens, 1))
    num_wrong = jnp.cumsum(wrong)
    first = jnp.arange(len(drafts)) - _num_before(drafts)
    return num_wrong == num_wrong[first]


def with_drafts(counts: Array, drafts: Array, num_drafts: int) -> Array:
    """counts [S, V] of what each row's request has sampled, and of the drafts before the row, at most `num_drafts`.

    Compared with every token rather than scattered: so it is part of the pass that reads the counts, no other one.
    """
    place, back = jnp.arange(len(drafts))[:, None], jnp.arange(num_drafts)
    tokens = jnp.where(back < _num_before(drafts)[:, None], drafts[place - back], DROPPED)  # [S, num_drafts]
    for of_rows in tokens.T[:, :, None]:
        counts += of_rows == jnp.arange(counts.shape[1])
    return counts
