"""What XLA's dump of a GPU program tells: each Pallas kernel's registers and memory, command buffers, product tiles."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.aot.hlo import Program

_TRITON_PRODUCT = re.compile(r'"kind":"__triton\w*gemm\w*".*?"output_tiles":\[\{"sizes":\[([^\]]*)\]')
_CUBLASLT = "__cublas$lt$matmul"


@dataclass(frozen=True)
class GpuKernel:
    name: str
    registers: int  # per thread
    shared_bytes: int  # per block
    spilled_bytes: int  # written to local memory per thread, by ptxas's account

    def __str__(self) -> str:
        spills = f"**{self.spilled_bytes} B spilled**" if self.spilled_bytes else "no spills"
        return f"{self.name}: {self.registers} registers, {self.shared_bytes / 1024:.1f} KiB shared, {spills}"


@dataclass(frozen=True)
class Commands:
    """A step as the GPU is given it: command buffers (CUDA graphs) are launched as one."""

    buffers: int
    inside: int  # commands captured in them
    outside: tuple[str, ...]  # kinds of those launched one by one, kAllReduce for instance


def kernels(program: Program, dump: Path) -> list[GpuKernel]:
    """Assembles the dumped PTX of `program`'s Pallas kernels once more: ptxas -v tells registers and spills.

    Raises ValueError for a kernel that the dump lacks.
    """
    found = []
    for name in program.kernels():
        ptx = next(
            (path for path in sorted(dump.glob("*.ptx")) if re.search(rf"\.entry {name}\b", path.read_text())), None
        )
        if ptx is None:
            raise ValueError(f"dump: {dump} has no PTX of the kernel {name}")
        registers, spilled = parse_ptxas(_run_ptxas(ptx), name)
        found.append(GpuKernel(name, registers, shared_bytes(_thunks(dump), name), spilled))
    return found


def parse_ptxas(output: str, kernel: str) -> tuple[int, int]:
    """(registers, bytes of spill stores) that `ptxas -v` reports for `kernel`."""
    after = output.partition(f"entry function '{kernel}'")[2]
    registers, spilled = re.search(r"Used (\d+) registers", after), re.search(r"(\d+) bytes spill stores", after)
    if registers is None or spilled is None:
        raise ValueError(f"output: has no report of {kernel}: {output}")
    return int(registers[1]), int(spilled[1])


def shared_bytes(thunks: str, kernel: str) -> int:
    """Of one block of `kernel`, in XLA's list of launches."""
    found = re.search(rf"\] {kernel} grid: .*shared_memory: (\d+) bytes", thunks)
    if found is None:
        raise ValueError(f"thunks: {kernel} is not among them")
    return int(found[1])


def commands(dump: Path) -> Commands:
    return parse_commands(_thunks(dump))


def parse_commands(thunks: str) -> Commands:
    """XLA's list of launches, a line each; those inside a command buffer are indented below it."""
    buffers, inside, outside, in_buffer = 0, 0, [], False
    for indent, kind in re.findall(r"^( *)\d+: (k\w+)", thunks, re.MULTILINE):
        if not indent:
            in_buffer = kind == "kCommandBuffer"
            buffers += in_buffer
        if in_buffer:
            inside += bool(indent)
        elif kind not in ("kAsyncStart", "kAsyncDone"):  # the launch is what stands in between
            outside.append(kind)
    return Commands(buffers, inside, tuple(outside))


def product_tiles(text: str) -> list[tuple[int, ...]]:
    """Output tiles of the matrix products that XLA gave to Triton, without leading batch dimensions of 1."""
    tiles = []
    for sizes in _TRITON_PRODUCT.findall(text):
        tile = tuple(int(size) for size in re.findall(r"\d+", sizes))
        tiles.append(tile[-2:])
    return tiles


def cublaslt_products(text: str) -> int:
    return text.count(f'custom_call_target="{_CUBLASLT}"')


def _thunks(dump: Path) -> str:
    """What is launched, after the passes that make command buffers, if there was enough for them."""
    launches = [*dump.glob("*.thunk_sequence_after_thunk_passes.txt"), *dump.glob("*.thunk_sequence.txt")]
    return launches[0].read_text()


def _run_ptxas(ptx: Path) -> str:
    architecture = re.search(r"^\.target (\w+)", ptx.read_text(), re.MULTILINE)
    assert architecture is not None, ptx
    command = [_find_ptxas(), "-v", f"-arch={architecture[1]}", str(ptx), "-o", "/dev/null"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def _find_ptxas() -> str:
    """Of the CUDA wheels, or on the path."""
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [path for folder in folders for path in folder.glob("*/bin/ptxas")]
    ptxas = str(found[0]) if found else shutil.which("ptxas")
    if ptxas is None:
        raise FileNotFoundError("no ptxas: neither in the CUDA wheels (pip install '.[compilers]') nor on the path")
    return ptxas
