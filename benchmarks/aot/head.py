"""The `sample` head compiled for a chip that is not here, and how often a step reads all of its logits."""

from collections.abc import Collection

import jax

from benchmarks.aot import compiling
from benchmarks.aot.hlo import Instruction, Program, array_bytes
from xlaserve.models.config import ModelConfig
from xlaserve.runner.compiler import COMPILER_OPTIONS
from xlaserve.runner.heads.blocks import ROWS_PER_TILE
from xlaserve.runner.heads.sample import make_sample, sample_packing
from xlaserve.runner.row_state import initial_row_state, mask_words
from xlaserve.targets import find_chip

_PARTS = {"gather", "dynamic-slice", "slice"}
_VIEWS = {"parameter", "tuple", "get-tuple-element", "bitcast", "while"}


def compile_head(
    config: ModelConfig, target: str, *, num_rows: int, greedy: bool, num_drafts: int = 0, dtype: str = "bfloat16"
) -> jax.stages.Compiled:
    """As the engine has it, for `num_rows` that all sample; with at most `num_drafts` drafts before each."""
    platform = find_chip(target).platform
    rows = jax.eval_shape(lambda: initial_row_state(num_rows, 1, 1, config.vocab_size))
    packing = sample_packing(num_rows)
    rows_per_tile = ROWS_PER_TILE.get(platform, 1)
    sample = make_sample(config, packing, greedy=greedy, num_drafts=num_drafts, rows_per_tile=rows_per_tile)
    weight = jax.ShapeDtypeStruct((config.vocab_size, config.hidden_size), dtype)
    hidden = jax.ShapeDtypeStruct((num_rows, config.hidden_size), dtype)
    packed = jax.ShapeDtypeStruct((packing.size,), "int32")
    masks = jax.ShapeDtypeStruct((num_rows, mask_words(config.vocab_size)), "int32")
    state = (rows.last_tokens,) if greedy else (rows.sampling, rows.rules, rows.counts, rows.last_tokens)
    return compiling.compile(
        sample, (weight, hidden, *state, packed, *(() if greedy else (masks,))), target,
        donate=(2,) if greedy else (4, 5), options=COMPILER_OPTIONS.get("tpu" if platform == "tpu" else "gpu", {}),
    )  # fmt: skip


def reads(program: Program, size: int, taken: Collection[str], computation: str = "") -> list[Instruction]:
    """What reads a whole float32 array of `size` bytes or more: the logits, or what has been made of all of them.

    Of conditionals those run their branch for true whose scope is in `taken`, others the one for false; loops do not
    count. Nor does what takes a part of an array only: a block of each row, say.
    """
    found = []
    for instruction in program.computations[computation or program.entry].values():
        if instruction.opcode == "conditional":
            is_taken = instruction.op_name.split("/")[-2] in taken
            found += reads(program, size, taken, instruction.called[is_taken])
        elif instruction.opcode == "call":
            found += reads(program, size, taken, instruction.called[0])
        elif instruction.opcode not in _VIEWS and _reads_whole(program, instruction, size):
            found.append(instruction)
    return found


def _reads_whole(program: Program, instruction: Instruction, size: int) -> bool:
    large = [place for place, each in enumerate(program.operands(instruction))
             if each.type.startswith("f32") and array_bytes(each.type) >= size]  # fmt: skip
    if instruction.opcode != "fusion":
        return bool(large) and instruction.opcode not in _PARTS
    inside = list(program.computations[instruction.called[0]].values())
    parameters = {each.index: each.name for each in inside if each.opcode == "parameter"}
    return any(not _only_parts(inside, parameters[place]) for place in large)


def _only_parts(inside: list[Instruction], name: str) -> bool:
    """Whether a fusion takes just parts of what is called so in it."""
    users = [each for each in inside if name in each.operands]
    return all(each.opcode in _PARTS or (each.opcode in _VIEWS and _only_parts(inside, each.name)) for each in users)
