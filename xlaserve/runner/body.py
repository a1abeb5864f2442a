"""The body: token ids in, hidden states and KV out, for rows of any length in one padded batch. It never samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from xlaserve_kernels.paged_attention import KVPool, slot_mapping

from xlaserve.layers.attention import AttentionMetadata
from xlaserve.models.config import ModelConfig
from xlaserve.models.forward_batch import AttentionPlan, ForwardBatch
from xlaserve.runner.commands import Body
from xlaserve.runner.packing import DROPPED, Packing
from xlaserve.runner.row_state import apply_deltas

FROM_DEVICE = -1  # in token_ids: the row's last sampled token


@dataclass(frozen=True)
class BodyShape:
    """Letters: T padded tokens, R rows, S output tokens."""

    num_tokens: int  # T
    num_rows: int  # R
    num_outputs: int  # S
    num_groups: int
    block_size: int

    @property
    def packing(self) -> Packing:
        # A row's n new tokens open at most n // block_size + 1 blocks in each group.
        per_group = self.num_tokens // self.block_size + min(self.num_tokens, self.num_rows)
        return Packing(
            (
                ("token_ids", (self.num_tokens,)),
                ("query_lens", (self.num_rows,)),
                ("starts", (self.num_rows,)),
                ("output_tokens", (self.num_outputs,)),
                ("deltas", (self.num_groups * per_group, 4)),
            )
        )


def pack_body(shape: BodyShape, command: Body) -> np.ndarray:
    """The command as the body's packed input; O(rows + new tokens)."""
    buffer, parts = shape.packing.new()
    place = 0
    for row in command.rows:
        end = place + row.num_tokens
        parts["token_ids"][place:end] = FROM_DEVICE if row.token_ids is None else row.token_ids
        parts["query_lens"][row.row] = row.num_tokens
        parts["starts"][row.row] = row.start
        place = end
    parts["output_tokens"][: len(command.outputs)] = command.outputs
    parts["deltas"][:, 0] = DROPPED
    if command.table_deltas:
        parts["deltas"][: len(command.table_deltas)] = command.table_deltas
    return buffer


def make_body(
    forward: Callable, config: ModelConfig, plan: AttentionPlan, shape: BodyShape
) -> Callable[..., tuple[Array, tuple[KVPool, ...], tuple[Array, ...]]]:
    """The function to compile for `shape`: (params, kv_caches, block_tables, last_tokens, packed) ->
    (hidden [S, D], kv_caches, block_tables). To be donated: kv_caches and block_tables."""

    def body(params: Any, kv_caches, block_tables, last_tokens: Array, packed: Array):
        parts = shape.packing.unpack(packed)
        block_tables = apply_deltas(block_tables, parts["deltas"])
        query_lens, starts = parts["query_lens"], parts["starts"]
        query_start_loc = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(query_lens, dtype=jnp.int32)])

        token = jnp.arange(shape.num_tokens, dtype=jnp.int32)
        row = jnp.searchsorted(query_start_loc[1:], token, side="right", method="compare_all")
        valid = row < shape.num_rows
        row = jnp.minimum(row, shape.num_rows - 1)
        positions = jnp.where(valid, starts[row] + token - query_start_loc[row], 0)
        token_ids = jnp.where(parts["token_ids"] == FROM_DEVICE, last_tokens[row], parts["token_ids"])
        seq_lens = jnp.where(query_lens > 0, starts + query_lens, 0)

        groups = tuple(
            AttentionMetadata(
                block_tables=table,
                slot_mapping=slot_mapping(table, row, positions, valid, shape.block_size),
                query_start_loc=query_start_loc,
                seq_lens=seq_lens,
            )
            for table in block_tables
        )
        token_ids = jnp.where(valid, token_ids, config.vocab_size)  # padding: zeros, which native code passes over
        batch = ForwardBatch(token_ids, positions, parts["output_tokens"], groups)
        hidden, kv_caches = forward(params, config, plan, kv_caches, batch)
        return hidden, kv_caches, block_tables

    return body
