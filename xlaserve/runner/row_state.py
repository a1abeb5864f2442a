"""What the device remembers of each running request, by row. Commands bring deltas, never whole tables."""

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from xlaserve.runner.commands import LogitRules, ResetRow
from xlaserve.runner.packing import DROPPED, Packing

NO_RULES = LogitRules()


@flax.struct.dataclass
class SamplingState:
    """The requests' sampling parameters: read by the `sample` head, written by ResetRow only."""

    temperature: Array  # float32 [R], 0 = greedy
    top_k: Array  # int32 [R], 0 = off
    top_p: Array  # float32 [R]
    min_p: Array  # float32 [R], 0 = off
    presence_penalty: Array  # float32 [R]
    frequency_penalty: Array  # float32 [R]
    repetition_penalty: Array  # float32 [R], 1 = off
    first_stop: Array  # int32 [R], the first position at which what stops the request may be sampled
    has_rules: Array  # bool [R]; else what the next two classes hold of the row is of an earlier request
    seed: Array  # uint32 [R, 2], high word first
    choice_index: Array  # int32 [R]


@flax.struct.dataclass
class RuleState:
    """What rows with rules ask of single tokens; written by ResetRow only."""

    bias: Array  # float32 [R, V], minus infinity where a token is not allowed
    prompt: Array  # int32 [R, W], bits of the tokens in the prompt
    stops: Array  # int32 [R, W], bits of the tokens that end the request


@flax.struct.dataclass
class RowState:
    block_tables: tuple[Array, ...]  # int32 [R, W] per layer group
    last_tokens: Array  # int32 [R], the token sampled last
    sampling: SamplingState
    rules: RuleState
    counts: Array  # int16 or int32 [R, V], how often rows with rules have sampled each token


def mask_words(vocab_size: int) -> int:
    """W, the 32-bit words that hold a bit for each token: token i is bit i % 32 of word i // 32."""
    return -(-vocab_size // 32)


def initial_row_state(
    num_rows: int, num_groups: int, table_width: int, vocab_size: int, count_dtype: type = np.int32
) -> RowState:
    """All rows idle."""
    words = (num_rows, mask_words(vocab_size))
    return RowState(
        block_tables=tuple(jnp.zeros((num_rows, table_width), jnp.int32) for _ in range(num_groups)),
        last_tokens=jnp.zeros(num_rows, jnp.int32),
        sampling=SamplingState(
            temperature=jnp.zeros(num_rows, jnp.float32),
            top_k=jnp.zeros(num_rows, jnp.int32),
            top_p=jnp.ones(num_rows, jnp.float32),
            min_p=jnp.zeros(num_rows, jnp.float32),
            presence_penalty=jnp.zeros(num_rows, jnp.float32),
            frequency_penalty=jnp.zeros(num_rows, jnp.float32),
            repetition_penalty=jnp.ones(num_rows, jnp.float32),
            first_stop=jnp.zeros(num_rows, jnp.int32),
            has_rules=jnp.zeros(num_rows, bool),
            seed=jnp.zeros((num_rows, 2), jnp.uint32),
            choice_index=jnp.zeros(num_rows, jnp.int32),
        ),
        rules=RuleState(
            bias=jnp.zeros((num_rows, vocab_size), jnp.float32),
            prompt=jnp.zeros(words, jnp.int32),
            stops=jnp.zeros(words, jnp.int32),
        ),
        counts=jnp.zeros((num_rows, vocab_size), count_dtype),
    )


_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTS = ("top_k", "first_stop", "has_rules", "choice_index")


def reset_packing(num_groups: int, table_width: int) -> Packing:
    scalars = ("row", *_FLOATS, *_INTS, "seed_high", "seed_low")
    return Packing((*((name, ()) for name in scalars), ("tables", (num_groups, table_width))))


def pack_reset(packing: Packing, command: ResetRow) -> np.ndarray:
    """The command as int32s, its rules' arrays aside; floats and the seed's words travel by their bits."""
    buffer, parts = packing.new()
    rules = command.rules or NO_RULES
    seed = command.seed % 2**64
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32).view(np.int32)
    values = {
        "row": command.row,
        "temperature": command.temperature,
        "top_k": command.top_k,
        "top_p": command.top_p,
        "min_p": command.min_p,
        "presence_penalty": rules.presence_penalty,
        "frequency_penalty": rules.frequency_penalty,
        "repetition_penalty": rules.repetition_penalty,
        "first_stop": rules.first_stop,
        "has_rules": command.rules is not None,
        "choice_index": command.choice_index,
    }
    for name, value in values.items():
        parts[name][...] = np.float32(value).view(np.int32) if name in _FLOATS else value
    parts["seed_high"][...], parts["seed_low"][...] = words
    for table, blocks in zip(parts["tables"], command.block_tables, strict=True):
        table[: len(blocks)] = blocks
    return buffer


def reset_row(
    block_tables: tuple[Array, ...], sampling: SamplingState, packed: Array, *, packing: Packing
) -> tuple[tuple[Array, ...], SamplingState]:
    """The program of ResetRow: rewrites one row. Donates both states."""
    parts = packing.unpack(packed)
    row = parts["row"]
    seed = lax.bitcast_convert_type(jnp.stack([parts["seed_high"], parts["seed_low"]]), jnp.uint32)
    values = {name: lax.bitcast_convert_type(parts[name], jnp.float32) for name in _FLOATS}
    values |= {name: parts[name].astype(getattr(sampling, name).dtype) for name in _INTS} | {"seed": seed}
    sampling = SamplingState(**{name: getattr(sampling, name).at[row].set(value) for name, value in values.items()})
    tables = tuple(table.at[row].set(parts["tables"][group]) for group, table in enumerate(block_tables))
    return tables, sampling


def rules_packing(vocab_size: int) -> Packing:
    tokens, words = (vocab_size,), (mask_words(vocab_size),)
    return Packing((("row", ()), ("bias", tokens), ("counts", tokens), ("prompt", words), ("stops", words)))


def pack_rules(packing: Packing, row: int, rules: LogitRules) -> np.ndarray:
    """What the rules say of each token, as int32s: O(V) on the host, for rows that have rules only."""
    buffer, parts = packing.new()
    vocab_size = len(parts["bias"])
    bias = parts["bias"].view(np.float32)
    if rules.allowed is not None:
        bias[:] = -np.inf
        bias[list(rules.allowed)] = 0
    for token, value in rules.bias:
        bias[token] += value
    bias[list(rules.forbidden)] = -np.inf
    parts["row"][...] = row
    if rules.output_ids:
        parts["counts"][:] = np.bincount(rules.output_ids, minlength=vocab_size)
    parts["prompt"][:] = token_bits(rules.prompt_ids, vocab_size)
    parts["stops"][:] = token_bits(rules.stop_ids, vocab_size)
    return buffer


def token_bits(token_ids: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """int32 [W], the bits of these tokens set; an EOS that the model has no row for is left out."""
    present = np.zeros(mask_words(vocab_size) * 32, bool)
    ids = np.array(token_ids, np.int64)
    present[ids[ids < vocab_size]] = True
    return np.packbits(present, bitorder="little").view(np.int32)


def set_rules(rules: RuleState, counts: Array, packed: Array, *, packing: Packing) -> tuple[RuleState, Array]:
    """The program that follows ResetRow for a row with rules. Donates both states."""
    parts = packing.unpack(packed)
    row = parts["row"]
    rules = RuleState(
        bias=rules.bias.at[row].set(lax.bitcast_convert_type(parts["bias"], jnp.float32)),
        prompt=rules.prompt.at[row].set(parts["prompt"]),
        stops=rules.stops.at[row].set(parts["stops"]),
    )
    return rules, counts.at[row].set(parts["counts"].astype(counts.dtype))


def apply_deltas(block_tables: tuple[Array, ...], deltas: Array) -> tuple[Array, ...]:
    """deltas int32 [n, 4] of (group, row, column, block); unused entries have group DROPPED."""
    group, row, column, block = deltas.T
    return tuple(
        table.at[jnp.where(group == index, row, DROPPED), column].set(block, mode="drop")
        for index, table in enumerate(block_tables)
    )
