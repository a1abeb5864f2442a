"""What programs need of a device's memory beside the weights and the KV pools, by the compiler's own account."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled

from xlaserve.runner.programs import ProgramShapes, compile_all, lowerings

PROBED = 4  # programs that probe_memory compiles
OUTPUTS_AT_ONCE = 4  # a body's and a head's, of the two steps that may be under way


@dataclass(frozen=True)
class ProgramMemory:
    """Bytes."""

    temporaries: int  # of the program that needs most: they run one after another
    code: int  # of all programs
    outputs: int  # of the program that returns most, donated arrays not counted
    state: int  # of the rows

    @property
    def num_bytes(self) -> int:
        return self.temporaries + self.code + OUTPUTS_AT_ONCE * self.outputs + self.state


def program_memory(shapes: ProgramShapes, programs: Iterable[Compiled], *, num_more: int = 0) -> ProgramMemory:
    """Of all `programs` together, and of `num_more` others that need no more than one of these."""
    found: list[Any] = [program.memory_analysis() for program in programs]
    code = [memory.generated_code_size_in_bytes for memory in found]
    return ProgramMemory(
        temporaries=max(memory.temp_size_in_bytes for memory in found),
        code=sum(code) + num_more * max(code),
        outputs=max(memory.output_size_in_bytes - memory.alias_size_in_bytes for memory in found),
        state=tree_bytes(jax.eval_shape(shapes.row_state)),
    )


def probe_memory(shapes: ProgramShapes, params: Any, head_weight: Any, sharding: NamedSharding) -> ProgramMemory:
    """What `program_memory` will say of the final programs, which differ from `shapes` in the pools' sizes only.

    Compiles the largest body and the largest heads; nothing is allocated. The others' code is taken to be as large.
    """
    bodies, heads = shapes.buckets.tokens, shapes.buckets.outputs
    jobs = dict(lowerings(shapes, params, head_weight, sharding))
    samples = [("sample", (heads[-1], greedy)) for greedy in (False, True)]
    largest = [("body", bodies[-1]), *samples, ("prompt_logprobs", shapes.buckets.most_outputs)]
    programs = compile_all({key: jobs[key] for key in largest}, sharding, lambda *_: None)
    memory = program_memory(shapes, programs.values())
    return dataclasses.replace(memory, code=memory.code * max(len(bodies), len(heads)))


def tree_bytes(tree: Any) -> int:
    """Of arrays, or of their ShapeDtypeStructs, on one device."""
    return sum(math.prod(_share(x)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _share(array: Any) -> tuple[int, ...]:
    return array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
