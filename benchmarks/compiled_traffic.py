"""The kernels around attention against XLA's own programs: kernels run and bytes moved, compiled for absent hardware.

    python -m benchmarks.compiled_traffic h100      # with jax's CUDA plugin; a100, h100, b200
    python -m benchmarks.compiled_traffic v5e v6e   # with libtpu

Prints a table in Markdown at Llama-3.1-8B's shapes (Qwen3-30B-A3B's experts), bfloat16. Nothing is executed.
"""

import os
import sys
from collections.abc import Callable, Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported: no device is needed
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding
from xlaserve_kernels import fused_norm, gated_activation, grouped_matmul, quantized_matmul
from xlaserve_kernels.fused_norm.arg_specs import NORMS
from xlaserve_kernels.gated_activation.arg_specs import GATES
from xlaserve_kernels.grouped_matmul.arg_specs import GROUPED_MATMULS
from xlaserve_kernels.quantized_matmul.arg_specs import MATMULS, VARIANTS

from benchmarks.aot_gpu import _DESCRIPTION, CARDS
from benchmarks.hlo_traffic import traffic

_TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "v7x": "tpu7x:2x2x1"}
_TOKENS = (64, 1024)


def device(target: str) -> tuple[SingleDeviceSharding, AbstractDevice]:
    if target in _TOPOLOGIES:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=_TOPOLOGIES[target])
        chip = topology.devices[0]
        return SingleDeviceSharding(chip), AbstractDevice(chip.device_kind, chip.num_cores, "tpu")
    card = next(card for name, card in CARDS.items() if name.startswith(target))
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="card", topology="1x1x1", target_config=_DESCRIPTION.format(**card)
    )
    return SingleDeviceSharding(topology.devices[0]), AbstractDevice(str(card["kind"]), None, "gpu")


def cases() -> Iterator[tuple[str, dict, Callable]]:
    """(operation, its implementations, (tokens, backend, placement) -> (function, arguments))"""
    matmul, norm, gate = MATMULS["llama-3.1-8b gate_up"], NORMS["llama-3.1-8b"], GATES["llama-3.1-8b"]
    for variant in VARIANTS:
        call = lambda t, b, variant=variant, **placed: matmul.call(t, variant, b, **placed)  # noqa: E731
        yield f"matmul {variant}", quantized_matmul.IMPLEMENTATIONS, call
    yield "grouped matmul", grouped_matmul.IMPLEMENTATIONS, GROUPED_MATMULS["qwen3-30b-a3b gate_up"].call
    for name, shape, module in (("add + norm", norm, fused_norm), ("gate", gate, gated_activation)):
        for quantized in (False, True):
            call = lambda t, b, shape=shape, quantized=quantized, **placed: shape.call(t, quantized, b, **placed)  # noqa: E731
            yield f"{name}{', int8 by 128' if quantized else ''}", module.IMPLEMENTATIONS, call


def line(target: str, name: str, backend: str, num_tokens: int, call: Callable) -> str:
    here, kind = device(target)
    function, arguments = call(num_tokens, backend, sharding=here)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=kind)):
        compiled = jax.jit(function, out_shardings=here).lower(*arguments).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None  # neither is, but of backends that keep no account
    assert text is not None
    least = memory.argument_size_in_bytes + memory.output_size_in_bytes
    kernels, moved = traffic(text)
    sizes = f"{moved / 2**20:.1f} | {least / 2**20:.1f} | {moved / least:.2f}"
    return f"| {target} | {name} | {num_tokens} | {backend} | {kernels} | {sizes} |"


def main() -> None:
    print("| target | operation | tokens | backend | kernels | MiB moved | least | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for target in sys.argv[1:]:
        for name, implementations, call in cases():
            for num_tokens in _TOKENS:
                for backend in ("xla", "pallas_tpu" if target in _TOPOLOGIES else "pallas_gpu"):
                    if backend in implementations:
                        print(line(target, name, backend, num_tokens, call), flush=True)


if __name__ == "__main__":
    main()
