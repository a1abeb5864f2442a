"""What libtpu tells of each Pallas kernel's memory on the chip."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.aot.hlo import Instruction, Program, array_bytes

VMEM, SMEM = "vmem", "smem"
_MEMORY_SPACE_VMEM = "1"


@dataclass(frozen=True)
class TpuKernel:
    name: str
    vmem_bytes: int  # blocks (twice, where they are prefetched), scratch, and operands that XLA keeps there
    smem_bytes: int  # prefetched scalars and scratch

    def __str__(self) -> str:
        return f"{self.name}: {self.vmem_bytes / 1024:.0f} KiB VMEM, {self.smem_bytes / 1024:.1f} KiB SMEM"


def dump_kernels(folder: Path) -> None:
    """Lets libtpu write what Mosaic makes of each kernel into `folder`. To be called before libtpu is loaded."""
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    os.environ["LIBTPU_INIT_ARGS"] = f"{given} --xla_mosaic_dump_to={folder}".strip()


def kernels(program: Program, dump: Path) -> list[TpuKernel]:
    """Of `program`, compiled since the dump was last emptied; empties it.

    Raises ValueError for a kernel that the dump lacks.
    """
    signatures = {}
    for path in sorted(dump.iterdir()):
        if path.name.endswith("-post-finalize-llo.txt"):
            text = path.read_text()
            signatures |= {name: text for name in re.findall(r"func\.func @([\w.]+)\(", text)}
        path.unlink()
    found = []
    for name, call in program.kernels().items():
        if name not in signatures:
            raise ValueError(f"dump: {dump} has no LLO of the kernel {name}")
        found.append(TpuKernel(name, vmem_bytes(call, program), smem_bytes(signatures[name])))
    return found


def vmem_bytes(call: Instruction, program: Program) -> int:
    """What XLA reserves for the kernel itself, and what it has put into VMEM of the kernel's operands before."""
    reserved = re.search(r'"used_scoped_memory_configs":\[([^\]]*)\]', call.attributes)
    configs = re.findall(r'"memory_space":"(\d+)","offset":"\d+","size":"(\d+)"', reserved[1] if reserved else "")
    operands = program.operands(call)
    kept = sum(array_bytes(operand.type) for operand in operands if f"S({_MEMORY_SPACE_VMEM})" in operand.type)
    return kept + sum(int(size) for space, size in configs if space == _MEMORY_SPACE_VMEM)


def smem_bytes(llo: str) -> int:
    """Of the arguments of the kernel's function in LLO: memref<8192xi32, ... #xir.memory_space<smem, tc>>."""
    signature = llo[llo.index("func.func @") :].partition("\n")[0]
    total = 0
    for shape in re.findall(r"memref<([^,<>]*), [^%]*?memory_space<smem", signature):
        *sizes, dtype = shape.split("x")
        bits = re.search(r"\d+", dtype)
        count = 1
        for size in sizes:
            count *= int(size)
        total += count * int(bits[0]) // 8 if bits else 0
    return total
