"""Reads a compiled program's text (`Compiled.as_text()`): what it moves and of which argument, fusions, collectives."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

# Instructions that compute nothing: they write in another place or form what was there.
MOVES = {"copy", "copy-done", "transpose", "slice", "slice-done", "dynamic-slice", "concatenate", "pad", "reshape",
         "convert", "reverse"}  # fmt: skip
_VIEWS = {"bitcast", "tuple", "get-tuple-element", "optimization-barrier", "copy-start", "slice-start", "while", "call"}
_IN_PLACE = {"scatter", "dynamic-update-slice"}  # their first operand is what they return
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
_FREE = {"parameter", "constant", "broadcast", "iota", "bitcast", "tuple", "get-tuple-element"}

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    attributes: str
    computation: str

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Computations that run when this one does; not those that say how to combine two numbers.

        Of a conditional: by the number that chooses, the one for false first.
        """
        found = re.findall(r"(?:calls|body|condition|false_computation)=%?([\w.\-]+)", self.attributes)
        found += re.findall(r"true_computation=%?([\w.\-]+)", self.attributes)
        for several in re.findall(r"(?:branch_computations|called_computations)=\{([^}]*)\}", self.attributes):
            found += re.findall(r"%?([\w.\-]+)", several)
        if self.opcode in ("call", "call-start"):
            found += re.findall(r"to_apply=%?([\w.\-]+)", self.attributes)
        return tuple(found)

    @cached_property
    def op_name(self) -> str:
        """Of a program's parameter: the path of the argument. Of another: where it was traced."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1].replace("\\", "") if found else ""

    @property
    def index(self) -> int:
        """Of a parameter or a get-tuple-element."""
        if self.opcode == "parameter":
            return int(self.operands[0])
        found = re.search(r"index=(\d+)", self.attributes)
        assert found is not None, self
        return int(found[1])


@dataclass(frozen=True)
class Movement:
    """An instruction, or a fusion, that only moves data within the device's memory."""

    name: str
    opcode: str
    bytes: int
    sources: frozenset[str]  # the arguments it moves, by their paths; empty: intermediate results


class Program:
    """The computations of one module."""

    def __init__(self, text: str | None):
        if text is None:
            raise ValueError("text: this compiler gives none")
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry, self.roots = "", {}
        self._called_by: dict[str, Instruction] = {}
        self._donated = {int(index) for index in re.findall(r"\}: \((\d+), \{\}, \w+-alias\)", text)}
        name = None
        for line in text.splitlines():
            if line.startswith("}"):
                name = None
            elif name is None:
                if head := _HEAD.match(line):
                    name = head[2]
                    self.computations[name] = {}
                    self.entry = name if head[1] else self.entry
            elif found := _NAME.match(line):
                instruction = _parse(found[2], line[found.end() :], name)
                self.computations[name][instruction.name] = instruction
                if found[1]:
                    self.roots[name] = instruction
                for called in instruction.called:
                    self._called_by[called] = instruction
        if not self.entry:
            raise ValueError("text: must be a compiled module's, with an ENTRY computation")

    def executed(self) -> Iterator[Instruction]:
        """Those that write to memory: all but the insides of fusions. A loop's body counts once."""
        waiting, seen = [self.entry], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for instruction in self.computations[name].values():
                yield instruction
                if instruction.opcode != "fusion":
                    waiting += instruction.called

    def movements(self, more_than: int = 2**20) -> list[Movement]:
        """Copies, transposes, slices and the like that write more bytes than that to the device's main memory."""
        found = []
        for instruction in self.executed():
            size = array_bytes(instruction.type, on_chip=False)
            if size > more_than and self._only_moves(instruction):
                opcode = instruction.opcode.removesuffix("-done")
                if opcode == "fusion":
                    opcode = self._moving_opcode(instruction)
                sources = self.sources(instruction) or self._alike(instruction)
                paths = frozenset(source.op_name for source in sources)
                found.append(Movement(instruction.name, opcode, size, paths))
        return found

    def sources(self, instruction: Instruction) -> set[Instruction]:
        """The program's parameters that this is a copy, a part or an updated version of."""
        found: set[Instruction] = set()
        waiting, seen = [(instruction, ())], set()
        while waiting:
            item = waiting.pop()
            if item in seen:
                continue
            seen.add(item)
            instruction, path = item
            if instruction.opcode == "parameter" and instruction.computation == self.entry:
                found.add(instruction)
            waiting += self._behind(instruction, path)
        return found

    def _alike(self, instruction: Instruction) -> set[Instruction]:
        """Donated arguments of the same size: suspected where the way back is lost, as in calls to other cores."""
        size = elements(instruction.type)
        parameters = (i for i in self.computations[self.entry].values() if i.opcode == "parameter")
        return {i for i in parameters if i.index in self._donated and elements(i.type) == size}

    def fusions(self) -> int:
        return sum(instruction.opcode == "fusion" for instruction in self.executed())

    def collectives(self) -> list[Instruction]:
        """Each once, also inside fusions and asynchronous wrappers."""
        return [
            instruction
            for computation in self.computations.values()
            for instruction in computation.values()
            if instruction.opcode.removesuffix("-start") in _COLLECTIVES
        ]

    def kernels(self) -> dict[str, Instruction]:
        """A call of each Pallas kernel, by the name given to pallas_call."""
        found = {}
        for instruction in self.executed():
            if instruction.opcode == "custom-call" and instruction.op_name.endswith("/pallas_call"):
                found[instruction.op_name.split("/")[-2]] = instruction
        return found

    def operands(self, instruction: Instruction) -> list[Instruction]:
        inside = self.computations[instruction.computation]
        return [inside[name] for name in instruction.operands if name in inside]

    def _behind(self, instruction: Instruction, path: tuple[int, ...]) -> list[tuple[Instruction, tuple[int, ...]]]:
        """What `instruction` is a moved or updated version of; `path`: tuple elements wanted of it, outermost first."""
        operands = self.operands(instruction)
        match instruction.opcode:
            case "parameter":
                caller = self._called_by.get(instruction.computation)
                place = 0 if caller and caller.opcode == "while" else instruction.index
                if caller is None or place >= len(caller.operands):
                    return []
                return [(self.computations[caller.computation][caller.operands[place]], path)]
            case "get-tuple-element":
                return [(operands[0], (instruction.index, *path))]
            case "tuple":
                return [(operands[path[0]], path[1:])] if path else []
            case "fusion":
                return [(self.roots[instruction.called[0]], path)]
            case "custom-call":
                return self._aliased(instruction, operands, path)
            case opcode if opcode in _IN_PLACE:
                return [(operands[0], path)]
            case opcode if opcode in MOVES or opcode in _VIEWS:
                # The result of a start is a tuple of several arrays, of which its end returns one.
                kept = () if opcode.endswith(("-start", "-done")) else path
                return [(operand, kept) for operand in operands]
        return []

    @staticmethod
    def _aliased(call: Instruction, operands: list[Instruction], path: tuple[int, ...]):
        """The operand that a kernel updates in place: output_to_operand_aliasing={{1}: (7, {})}."""
        for output, operand in re.findall(r"\{([\d, ]*)\}: \((\d+), \{\}\)", call.attributes):
            if tuple(map(int, re.findall(r"\d+", output))) == path:
                return [(operands[int(operand)], ())]
        return []

    def _only_moves(self, instruction: Instruction) -> bool:
        if instruction.opcode != "fusion":
            return instruction.opcode in MOVES
        inside = self.computations[instruction.called[0]].values()
        half = max((elements(i.type) for i in inside if i.opcode not in _FREE), default=math.inf) / 2
        large = {i.opcode for i in inside if elements(i.type) >= half}
        moving = large - _FREE
        return "parameter" in large and bool(moving) and moving <= MOVES

    def _moving_opcode(self, fusion: Instruction) -> str:
        """Of what a fusion does, what costs most to think about: its last movement that is no conversion."""
        opcodes = [i.opcode for i in self.computations[fusion.called[0]].values() if i.opcode in MOVES]
        return next((opcode for opcode in reversed(opcodes) if opcode not in ("convert", "reshape")), opcodes[-1])


def elements(type_text: str) -> int:
    """Of the largest array in an HLO type: "bf16[64,4096]{1,0}" or a tuple of such."""
    return max((math.prod(_dimensions(shape)) for _, shape, _ in _ARRAY.findall(type_text)), default=0)


def array_bytes(type_text: str, *, on_chip: bool = True) -> int:
    """Of an HLO type's arrays. Without `on_chip` those do not count that a memory space S(n) places on the chip."""
    total = 0
    for dtype, shape, layout in _ARRAY.findall(type_text):
        if on_chip or "S(" not in layout:
            bits = _BITS.search(dtype)
            total += math.prod(_dimensions(shape)) * (int(bits[0]) if bits else 8) // 8
    return total


def _dimensions(shape: str) -> list[int]:
    return [int(size) for size in shape.split(",") if size]


def _parse(name: str, rest: str, computation: str) -> Instruction:
    """`rest`: TYPE OPCODE(OPERANDS), ATTRIBUTES"""
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    type_text, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    end = _closing(rest, start)
    inner = rest[start + 1 : end]
    operands = tuple(re.findall(r"%([\w.\-]+)", inner)) or tuple(part.strip() for part in inner.split(",") if part)
    return Instruction(name, rest[:start], type_text, operands, rest[end + 1 :], computation)


def _closing(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    raise ValueError(f"no closing parenthesis: {text[:80]}")
