"""How many kernels a compiled program runs and how many bytes they move, read from its text.

A kernel reads each operand and writes each result once, as far as they lie in the device's main memory. A fusion that
slices an operand reads the slice. Loops count as often as they run. What a Pallas kernel fetches more than once is not
seen here.
"""

import re

from benchmarks.aot.hlo import Instruction, Program, array_bytes

_FREE = {
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy-done", "slice-done", "async-done",
    "after-all", "opt-barrier",
}  # fmt: skip


def traffic(program: Program) -> tuple[int, int]:
    """(kernels run, bytes moved)"""
    return _of(program, program.entry)


def _of(program: Program, computation: str) -> tuple[int, int]:
    kernels = moved = 0
    for instruction in program.computations[computation].values():
        if instruction.opcode in _FREE or "AllocateBuffer" in instruction.attributes:
            continue
        if instruction.opcode in ("while", "call"):
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.attributes)
            times = int(trips[1]) if trips else 1
            for called in re.findall(r"(?:body|to_apply)=%?([\w.-]+)", instruction.attributes):
                inside = _of(program, called)
                kernels, moved = kernels + inside[0] * times, moved + inside[1] * times
            continue
        kernels += 1
        moved += _written(instruction)
        for place, operand in enumerate(program.operands(instruction)):
            sliced = _sliced(program, instruction, place)
            moved += _written(operand) if sliced is None else min(sliced, _written(operand))
    return kernels, moved


def _written(instruction: Instruction) -> int:
    """Bytes in main memory of the result; a start returns the destination, then the source again."""
    type_text = instruction.type
    if instruction.opcode.endswith("-start"):
        type_text = type_text.removeprefix("(").split("}, ")[0] + "}"
    return array_bytes(type_text, on_chip=False)


def _sliced(program: Program, instruction: Instruction, place: int) -> int | None:
    """The bytes that a fusion reads of operand `place`, if all it does with it is to slice it."""
    if instruction.opcode != "fusion":
        return None
    inside = program.computations[instruction.called[0]].values()
    parameter = next((i.name for i in inside if i.opcode == "parameter" and i.index == place), None)
    users = [i for i in inside if parameter in i.operands]
    if users and all(i.opcode in ("dynamic-slice", "slice") for i in users):
        return sum(map(_written, users))
    return None
