"""What programs need beside weights and pools, and how long they take to compile, where no compiler is asked.

Fitted to what libtpu says of Llama-3.1-8B's programs on eight v5e, and jax's CUDA plugin of smaller ones on an H100.
"""

import jax

from xlaserve.runner.program_memory import ProgramMemory, tree_bytes
from xlaserve.runner.programs import ProgramShapes

MIB = 2**20
WORKSPACE = 24 * MIB  # of products and attention, however few tokens
LOGITS_AT_ONCE = 6  # arrays of them that sampling keeps
CODE = {"tpu": (10 * MIB, 4 * MIB)}  # bytes of a program, and for each layer of a body; others' is not counted
SECONDS = {"tpu": (5.0, 1.0), "gpu": (4.0, 0.3), "cpu": (1.0, 0.2)}  # of a processor core, likewise


def estimate_memory(shapes: ProgramShapes, platform: str) -> ProgramMemory:
    """Of the whole set of programs; on a CPU the code is taken to be nothing."""
    config, itemsize = shapes.config, shapes.dtype.itemsize
    # Alive at once in a layer: the residual stream, a norm's output and the block's, and the gate beside what it gates.
    values = 4 * config.hidden_size + 2 * config.intermediate_size // shapes.num_devices
    body = shapes.buckets.tokens[-1] * values * itemsize + WORKSPACE
    widest = shapes.buckets.outputs[-1]
    head = LOGITS_AT_ONCE * widest * config.vocab_size * 4  # float32
    per_program, per_layer = CODE.get(platform, (0, 0))
    code = num_programs(shapes) * per_program + len(shapes.buckets.tokens) * config.num_layers * per_layer
    return ProgramMemory(
        temporaries=max(body, head),
        code=int(code),
        outputs=widest * config.hidden_size * itemsize,
        state=tree_bytes(jax.eval_shape(shapes.row_state)),
    )


def num_programs(shapes: ProgramShapes) -> int:
    """Bodies, two variants of `sample` per size, and five more; two to move blocks per group with a host tier."""
    return len(shapes.buckets.tokens) + 2 * len(shapes.buckets.outputs) + 5 + 2 * len(shapes.host_slots)


def compile_seconds(shapes: ProgramShapes, platform: str, num_cores: int) -> float:
    """Of the clock, on a machine with nothing else to do."""
    per_program, per_layer = SECONDS[platform]
    bodies = len(shapes.buckets.tokens)
    return (num_programs(shapes) * per_program + bodies * shapes.config.num_layers * per_layer) / num_cores
