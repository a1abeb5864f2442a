"""The kernels around attention against XLA's own programs: kernels run and bytes moved, compiled for absent hardware.

    python -m benchmarks.aot.against_xla h100 v5e v6e   # with jax's CUDA plugin and libtpu

Prints a table in Markdown at Llama-3.1-8B's shapes (Qwen3-30B-A3B's experts), bfloat16. Nothing is executed.
"""

import sys
from collections.abc import Callable, Iterator

from xlaserve_kernels import fused_norm, gated_activation, grouped_matmul, quantized_matmul
from xlaserve_kernels.fused_norm.arg_specs import NORMS
from xlaserve_kernels.gated_activation.arg_specs import GATES
from xlaserve_kernels.grouped_matmul.arg_specs import GROUPED_MATMULS
from xlaserve_kernels.quantized_matmul.arg_specs import MATMULS, VARIANTS

from benchmarks.aot import compiling
from benchmarks.aot.body import backend_for
from benchmarks.aot.hlo import Program
from benchmarks.aot.traffic import traffic
from xlaserve.targets import find_chip

_TOKENS = (64, 1024)


def cases() -> Iterator[tuple[str, dict, Callable]]:
    """(operation, its implementations, (tokens, backend) -> (function, arguments))"""
    matmul, norm, gate = MATMULS["llama-3.1-8b gate_up"], NORMS["llama-3.1-8b"], GATES["llama-3.1-8b"]
    for variant in VARIANTS:
        call = lambda t, b, variant=variant: matmul.call(t, variant, b)  # noqa: E731
        yield f"matmul {variant}", quantized_matmul.IMPLEMENTATIONS, call
    yield "grouped matmul", grouped_matmul.IMPLEMENTATIONS, GROUPED_MATMULS["qwen3-30b-a3b gate_up"].call
    for name, shape, module in (("add + norm", norm, fused_norm), ("gate", gate, gated_activation)):
        for quantized in (False, True):
            call = lambda t, b, shape=shape, quantized=quantized: shape.call(t, quantized, b)  # noqa: E731
            yield f"{name}{', int8 by 128' if quantized else ''}", module.IMPLEMENTATIONS, call


def line(target: str, name: str, backend: str, num_tokens: int, call: Callable) -> str:
    function, arguments = call(num_tokens, backend)
    compiled = compiling.compile(function, arguments, target)
    memory = compiled.memory_analysis()
    assert memory is not None
    least = memory.argument_size_in_bytes + memory.output_size_in_bytes
    kernels, moved = traffic(Program(compiled.as_text()))
    sizes = f"{moved / 2**20:.1f} | {least / 2**20:.1f} | {moved / least:.2f}"
    return f"| {target} | {name} | {num_tokens} | {backend} | {kernels} | {sizes} |"


def main() -> None:
    print("| target | operation | tokens | backend | kernels | MiB moved | least | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for target in sys.argv[1:]:
        for name, implementations, call in cases():
            for num_tokens in _TOKENS:
                for backend in ("xla", backend_for(find_chip(target).platform)):
                    if backend in implementations:
                        print(line(target, name, backend, num_tokens, call), flush=True)


if __name__ == "__main__":
    main()
