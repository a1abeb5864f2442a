"""What the device remembers of each running request, by row. Commands bring deltas, never whole tables."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve.runner.commands import ResetRow
from xlaserve.runner.packing import DROPPED, Packing


@flax.struct.dataclass
class SamplingState:
    """The requests' sampling parameters: read by the `sample` head, written by ResetRow only."""

    temperature: Array  # float32 [R], 0 = greedy
    top_k: Array  # int32 [R], 0 = off
    top_p: Array  # float32 [R]
    seed: Array  # uint32 [R, 2], high word first
    choice_index: Array  # int32 [R]


@flax.struct.dataclass
class RowState:
    block_tables: tuple[Array, ...]  # int32 [R, W] per layer group
    last_tokens: Array  # int32 [R], the token sampled last
    sampling: SamplingState


def initial_row_state(num_rows: int, num_groups: int, table_width: int) -> RowState:
    """All rows idle."""
    return RowState(
        block_tables=tuple(jnp.zeros((num_rows, table_width), jnp.int32) for _ in range(num_groups)),
        last_tokens=jnp.zeros(num_rows, jnp.int32),
        sampling=SamplingState(
            temperature=jnp.zeros(num_rows, jnp.float32),
            top_k=jnp.zeros(num_rows, jnp.int32),
            top_p=jnp.ones(num_rows, jnp.float32),
            seed=jnp.zeros((num_rows, 2), jnp.uint32),
            choice_index=jnp.zeros(num_rows, jnp.int32),
        ),
    )


def reset_packing(num_groups: int, table_width: int) -> Packing:
    scalars = ("row", "temperature", "top_k", "top_p", "seed_high", "seed_low", "choice_index")
    return Packing((*((name, ()) for name in scalars), ("tables", (num_groups, table_width))))


def pack_reset(packing: Packing, command: ResetRow) -> np.ndarray:
    """The command as int32s; floats and the seed's words travel by their bits."""
    buffer, parts = packing.new()
    seed = command.seed % 2**64
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32).view(np.int32)
    parts["row"][...] = command.row
    parts["temperature"][...] = np.float32(command.temperature).view(np.int32)
    parts["top_k"][...] = command.top_k
    parts["top_p"][...] = np.float32(command.top_p).view(np.int32)
    parts["seed_high"][...], parts["seed_low"][...] = words
    parts["choice_index"][...] = command.choice_index
    for table, blocks in zip(parts["tables"], command.block_tables, strict=True):
        table[: len(blocks)] = blocks
    return buffer


def reset_row(
    block_tables: tuple[Array, ...], sampling: SamplingState, packed: Array, *, packing: Packing
) -> tuple[tuple[Array, ...], SamplingState]:
    """The program of ResetRow: rewrites one row. Donates both states."""
    parts = packing.unpack(packed)
    row = parts["row"]

    def as_float(name: str) -> Array:
        return jax.lax.bitcast_convert_type(parts[name], jnp.float32)

    seed = jax.lax.bitcast_convert_type(jnp.stack([parts["seed_high"], parts["seed_low"]]), jnp.uint32)
    sampling = SamplingState(
        temperature=sampling.temperature.at[row].set(as_float("temperature")),
        top_k=sampling.top_k.at[row].set(parts["top_k"]),
        top_p=sampling.top_p.at[row].set(as_float("top_p")),
        seed=sampling.seed.at[row].set(seed),
        choice_index=sampling.choice_index.at[row].set(parts["choice_index"]),
    )
    tables = tuple(table.at[row].set(parts["tables"][group]) for group, table in enumerate(block_tables))
    return tables, sampling


def apply_deltas(block_tables: tuple[Array, ...], deltas: Array) -> tuple[Array, ...]:
    """deltas int32 [n, 4] of (group, row, column, block); unused entries have group DROPPED."""
    group, row, column, block = deltas.T
    return tuple(
        table.at[jnp.where(group == index, row, DROPPED), column].set(block, mode="drop")
        for index, table in enumerate(block_tables)
    )
