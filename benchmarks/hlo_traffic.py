"""How many kernels a compiled program has and how many bytes they move, read from its text.

A kernel reads each operand and writes each result once, as far as they lie in the device's main memory: on TPUs what
lies in VMEM, `S(1)` in the text, is not counted. A fusion that slices an operand reads the slice. Loops count as often
as they run. What a Pallas kernel fetches more than once is not seen here.
"""

import math
import re
from dataclasses import dataclass, field

_FREE = {
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy-done", "slice-done", "async-done",
    "after-all", "opt-barrier",
}  # fmt: skip
_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16} | {f"{kind}{n}": n for kind in "suf" for n in (8, 16, 32, 64)}
_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$")
_CALL = re.compile(r"^(\(.*?\)|[\w\[\],]+(?:\{[^ ]*\})?) ([\w-]+)\((.*?)\)(.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^ ]*?\})?(?=[,) ]|$)")


@dataclass
class Instruction:
    bytes_out: int
    opcode: str
    operands: list[str]
    rest: str  # attributes


@dataclass
class Program:
    entry: str = ""
    computations: dict[str, dict[str, Instruction]] = field(default_factory=dict)


def parse(text: str) -> Program:
    program, current = Program(), {}
    for line in text.splitlines():
        header = re.match(r"^(ENTRY )?%?([\w.-]+) \(.*\{$", line)
        if header:
            current = program.computations.setdefault(header[2], {})
            program.entry = header[2] if header[1] else program.entry
        elif (named := _LINE.match(line)) and (call := _CALL.match(_without_comments(named[2]))):
            kind, opcode, operands, rest = call.groups()
            if opcode.endswith("-start"):  # (destination, source again, ...)
                kind = kind.removeprefix("(").split("}, ")[0] + "}"
            names = re.findall(r"%([\w.-]+)", operands) or re.findall(r"([\w.-]+)(?:,|$)", operands)
            current[named[1]] = Instruction(_size(kind), opcode, names, rest)
    return program


def traffic(text: str) -> tuple[int, int]:
    """(kernels run, bytes moved) of a compiled program's text."""
    program = parse(text)
    return _traffic(program, program.entry)


def _traffic(program: Program, name: str) -> tuple[int, int]:
    kernels = moved = 0
    body = program.computations[name]
    for instruction in body.values():
        if instruction.opcode in _FREE or "AllocateBuffer" in instruction.rest:
            continue
        called = re.search(r"(?:calls|body|to_apply)=%?([\w.-]+)", instruction.rest)
        if instruction.opcode in ("while", "call") and called:
            count, size = _traffic(program, called[1])
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.rest)
            times = int(trips[1]) if trips else 1
            kernels, moved = kernels + count * times, moved + size * times
            continue
        kernels += 1
        moved += instruction.bytes_out
        fused = program.computations.get(called[1]) if called and instruction.opcode == "fusion" else None
        for place, operand in enumerate(instruction.operands):
            if operand in body:
                moved += min(body[operand].bytes_out, _read(fused, place) if fused else body[operand].bytes_out)
    return kernels, moved


def _read(fused: dict[str, Instruction], place: int) -> int:
    """The bytes that a fusion reads of parameter `place`, if it only slices it; else no bound."""
    parameter = next((n for n, i in fused.items() if i.opcode == "parameter" and i.operands == [str(place)]), None)
    users = [i for i in fused.values() if parameter in i.operands]
    if users and all(i.opcode in ("dynamic-slice", "slice") for i in users):
        return sum(i.bytes_out for i in users)
    return 2**62


def _size(kind: str) -> int:
    """Bytes in main memory of an array's or tuple's type."""
    total = 0
    for dtype, shape, layout in _ARRAY.findall(kind):
        bits = _BITS.get(dtype) or (8 if dtype.startswith("f8") else 0)
        if "S(1)" not in layout:
            total += math.prod(int(n) for n in shape.split(",") if n) * bits // 8
    return total


def _without_comments(line: str) -> str:
    return re.sub(r"/\*.*?\*/", "", line)
