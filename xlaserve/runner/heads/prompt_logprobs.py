"""The `prompt_logprobs` head: hidden rows and the token after each in, what the model makes of those tokens out."""

from collections.abc import Callable

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import compute_logits
from xlaserve.runner.commands import PromptLogprobs
from xlaserve.runner.heads.blocks import in_blocks
from xlaserve.runner.packing import DROPPED, Packing
from xlaserve.sampling_params import MAX_LOGPROBS


@flax.struct.dataclass
class PromptLogprobsOutput:
    ok: Array  # bool [S], whether the logits were finite
    logprobs: Array  # float32 [S]
    ranks: Array  # int32 [S], from 1
    top_ids: Array  # int32 [S, MAX_LOGPROBS]
    top_logprobs: Array  # float32 [S, MAX_LOGPROBS]


def prompt_logprobs_packing(num_outputs: int) -> Packing:
    return Packing((("hidden_rows", (num_outputs,)), ("next_ids", (num_outputs,))))


def pack_prompt_logprobs(packing: Packing, command: PromptLogprobs) -> np.ndarray:
    buffer, parts = packing.new()
    count = len(command.hidden_rows)
    parts["hidden_rows"][:] = DROPPED
    parts["hidden_rows"][:count] = command.hidden_rows
    parts["next_ids"][:count] = command.next_ids
    return buffer


def make_prompt_logprobs(
    config: ModelConfig, packing: Packing, *, rows_per_tile: int = 1, axis: str | None = None
) -> Callable[..., PromptLogprobsOutput]:
    """The function to compile: (head_weight, hidden [S, D], packed) -> PromptLogprobsOutput. Nothing is donated.

    rows_per_tile, axis: as `make_sample` takes them.
    """

    def prompt_logprobs(head_weight: Array, hidden: Array, packed: Array) -> PromptLogprobsOutput:
        parts = packing.unpack(packed)
        rows = hidden.at[parts["hidden_rows"]].get(mode="fill", fill_value=0)
        logits = compute_logits(head_weight, config, rows, axis)  # float32 [S, V]
        blocks = in_blocks(logits, rows_per_tile)
        total = blocks.log_total()[:, None]
        mine = jnp.take_along_axis(logits, parts["next_ids"][:, None], axis=-1)
        num_top = min(MAX_LOGPROBS, logits.shape[-1])
        top, top_ids = blocks.largest(num_top)
        pad = ((0, 0), (0, MAX_LOGPROBS - num_top))
        return PromptLogprobsOutput(
            ok=jnp.isfinite(total[:, 0]),
            logprobs=(mine - total)[:, 0],
            ranks=1 + (logits > mine).sum(axis=-1, dtype=jnp.int32),
            top_ids=jnp.pad(top_ids, pad),
            top_logprobs=jnp.pad(top - total, pad, constant_values=-jnp.inf),
        )

    return prompt_logprobs
