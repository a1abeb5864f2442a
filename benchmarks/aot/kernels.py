"""Every kernel at the shapes of real models, compiled for chips that are not here: a table in Markdown. Runs nothing.

    make aot         # a sample, a line per chip and step
    make aot-full    # all of it, into docs/aot.md

A case that does not compile is a line with its reason, and makes the exit code 1. For AMD no compiler is at hand: its
kernels are lowered to Triton code, and no further.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from xlaserve_kernels import fused_norm, gated_activation, grouped_matmul, quantized_matmul
from xlaserve_kernels.arg_specs import ATTENTION, BATCHES, BLOCK_SIZE
from xlaserve_kernels.backend import BACKENDS
from xlaserve_kernels.fused_norm.arg_specs import NORMS
from xlaserve_kernels.gated_activation.arg_specs import GATES
from xlaserve_kernels.grouped_matmul.arg_specs import GROUPED_MATMULS
from xlaserve_kernels.quantized_matmul.arg_specs import MATMULS, TOKENS, VARIANTS

from benchmarks.aot import compiling, gpu_code, tpu_code
from benchmarks.aot.body import backend_for
from benchmarks.aot.hlo import Program
from xlaserve.targets import CHIPS, find_chip

MIB = 2**20
HEADER = """\
| op | shape | target | backend | seconds | temporaries (MiB) | kernels |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Op:
    """`call(shape, backend)` gives a function and its abstract arguments."""

    name: str
    shapes: Mapping[str, Any]
    call: Callable[[Any, str], tuple[Callable, list]]
    sample: tuple[str, ...]  # the shapes that stand for all: the plainest, and those with the most in them
    backends: Container[str] = tuple(BACKENDS)  # that have a kernel; others leave the operation to XLA


_STEPS = {f"{model}; {batch}": (ATTENTION[model], BATCHES[batch]) for model in ATTENTION for batch in BATCHES}
OPS = (
    Op(
        "paged_attention",
        _STEPS,
        lambda shape, backend: shape[0].call(*shape[1], backend),
        ("llama-3.1-8b; decode, 64 rows", "gemma-2-9b; mixed, 1,024 tokens"),
    ),
    Op(
        "kv_write",
        _STEPS,
        lambda shape, backend: shape[0].write_call(*shape[1], backend),
        ("llama-3.1-8b, int8 KV; mixed, 1,024 tokens",),
        ("pallas_tpu",),
    ),
    Op(
        "gated_activation",
        {f"{model}, int8; {step}": (GATES[model], TOKENS[step]) for model in GATES for step in TOKENS},
        lambda shape, backend: shape[0].call(shape[1], True, backend),
        (),
        gated_activation.IMPLEMENTATIONS,
    ),
    Op(
        "fused_norm",
        {f"{model}, int8; {step}": (NORMS[model], TOKENS[step]) for model in NORMS for step in TOKENS},
        lambda shape, backend: shape[0].call(shape[1], True, backend),
        (),
        fused_norm.IMPLEMENTATIONS,
    ),
    Op(
        "grouped_matmul",
        {f"{model}; {step}": (GROUPED_MATMULS[model], TOKENS[step]) for model in GROUPED_MATMULS for step in TOKENS},
        lambda shape, backend: shape[0].call(shape[1], backend),
        ("gpt-oss-20b down; mixed",),
        grouped_matmul.IMPLEMENTATIONS,
    ),
    Op(
        "quantized_matmul",
        {
            f"{model}, {variant}; {step}": (MATMULS[model], TOKENS[step], variant)
            for model in MATMULS
            for variant in VARIANTS
            for step in TOKENS
        },
        lambda shape, backend: shape[0].call(shape[1], shape[2], backend),
        ("llama-3.1-8b qkv, w4a16; mixed",),
        quantized_matmul.IMPLEMENTATIONS,
    ),
)


def compile_case(op: Op, shape: str, target: str, mosaic: Path) -> str:
    """The case's cells after its backend. Raises what the compiler raises."""
    platform = find_chip(target).platform
    function, arguments = op.call(op.shapes[shape], backend_for(platform))
    start = time.perf_counter()
    if platform == "rocm":
        compiling.lower(function, arguments, target)
        return f"{time.perf_counter() - start:.1f} | | lowered only"
    with tempfile.TemporaryDirectory() as folder:
        compiled = compiling.compile(function, arguments, target, dump_to=folder)
        seconds, memory, program = time.perf_counter() - start, compiled.memory_analysis(), Program(compiled.as_text())
        found = tpu_code.kernels(program, mosaic) if platform == "tpu" else gpu_code.kernels(program, Path(folder))
    assert memory is not None  # None only of backends that keep no account
    told = "<br>".join(map(str, found)) or "none: XLA's own operations"
    return f"{seconds:.1f} | {memory.temp_size_in_bytes / MIB:.1f} | {told}"


def lines(chosen: list[str], ops: list[str], *, full: bool) -> Iterator[tuple[str, bool]]:
    """(a line of the table, whether it compiled)"""
    with tempfile.TemporaryDirectory() as folder:
        mosaic = Path(folder)
        tpu_code.dump_kernels(mosaic)
        for op in OPS:
            if op.name not in ops:
                continue
            for shape in op.shapes if full else op.sample:
                for target in chosen:
                    backend = backend_for(find_chip(target).platform)
                    if backend not in op.backends:
                        continue
                    line = f"| {op.name} | {shape} | {target} | {backend} |"
                    try:
                        yield f"{line} {compile_case(op, shape, target, mosaic)} |", True
                    except Exception as error:  # of whatever kind: it is a line of the table
                        yield f"{line} | | **{type(error).__name__}**: {_shorten(str(error))} |", False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all shapes, not a sample")
    parser.add_argument("--targets", nargs="+", choices=CHIPS, default=list(CHIPS), metavar="NAME")
    names = [op.name for op in OPS]
    parser.add_argument("--ops", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="write the table there, not to the standard output")
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") if options.out else nullcontext(sys.stdout) as file:
        title = f"Kernels in bfloat16, blocks of {BLOCK_SIZE}, jax {jax.__version__}: compiled, not executed."
        print(f"{title} By `python -m benchmarks.aot.kernels`.\n\n{HEADER}", file=file, flush=True)
        failed = False
        for line, compiled in lines(options.targets, options.ops, full=options.full):
            print(line, file=file, flush=True)
            failed |= not compiled
    raise SystemExit(1 if failed else 0)


def _shorten(message: str) -> str:
    """For a table's cell."""
    return " ".join(message.split()).replace("|", "/")[:200]


if __name__ == "__main__":
    main()
