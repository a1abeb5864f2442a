"""Compiles the GPU kernels to machine code for cards that are not here, at the shapes of real models; runs nothing.

    make aot        # a virtual environment of its own, with jax's CUDA plugin: a download of 4 GB

Prints a table in Markdown, a line per model, batch and card; what does not compile is a line with its reason. Ends with
exit code 1 if there is one.
"""

import os
import time
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported: no card is needed
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding
from xlaserve_kernels.arg_specs import ATTENTION, BATCHES, BLOCK_SIZE, AttentionShape

# A card as XLA describes it; the figures are the vendor's.
_DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_per_core}  threads_per_core_limit: 2048  core_count: {cores}  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}  l2_cache_size: {l2}  clock_rate_ghz: {ghz}
  device_memory_size: {memory}  shared_memory_per_block_optin: {shared_optin}
  cuda_compute_capability {{ major: {major} minor: 0 }}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{kind}"
"""
CARDS = {
    "a100 (sm_80)": dict(
        kind="NVIDIA A100-SXM4-80GB", major=8, cores=108, ghz=1.41, bandwidth=2_039_000_000_000, l2=41943040,
        memory=85_198_045_184, shared_per_core=167936, shared_optin=166912,
    ),
    "h100 (sm_90)": dict(
        kind="NVIDIA H100 80GB HBM3", major=9, cores=132, ghz=1.98, bandwidth=3_352_320_000_000, l2=52428800,
        memory=84_942_979_072, shared_per_core=233472, shared_optin=232448,
    ),
    "b200 (sm_100)": dict(
        kind="NVIDIA B200", major=10, cores=148, ghz=1.965, bandwidth=8_000_000_000_000, l2=132644864,
        memory=191_000_000_000, shared_per_core=233472, shared_optin=232448,
    ),
}  # fmt: skip


def compile_attention(shape: AttentionShape, num_tokens: int, num_rows: int, card: dict) -> tuple[float, int]:
    """(seconds, bytes of temporaries) Raises what the compiler raises."""
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="card", topology="1x1x1", target_config=_DESCRIPTION.format(**card)
    )
    here = SingleDeviceSharding(topology.devices[0])
    attend, arguments = shape.call(num_tokens, num_rows, "pallas_gpu", sharding=here)
    start = time.perf_counter()
    with jax.sharding.use_abstract_mesh(
        AbstractMesh((), (), abstract_device=AbstractDevice(card["kind"], None, "gpu"))
    ):
        compiled = jax.jit(attend, out_shardings=here).lower(*arguments).compile()
    seconds, memory = time.perf_counter() - start, compiled.memory_analysis()
    assert memory is not None  # None only of backends that keep no account
    return seconds, memory.temp_size_in_bytes


def rows() -> Iterator[tuple[str, bool]]:
    """(a line of the table, whether it compiled)"""
    for model, shape in ATTENTION.items():
        for batch, (num_tokens, num_rows) in BATCHES.items():
            for card, description in CARDS.items():
                line = f"| {model} | {batch} | {card} |"
                try:
                    seconds, temporaries = compile_attention(shape, num_tokens, num_rows, description)
                except Exception as error:  # of whatever kind: it is a line of the table
                    yield f"{line} {type(error).__name__}: {' '.join(str(error).split())[:200]} | |", False
                else:
                    yield f"{line} {seconds:.1f} | {temporaries / 2**20:.1f} |", True


def main() -> None:
    print(f"Paged attention, jax {jax.__version__}, bfloat16, blocks of {BLOCK_SIZE}: compiled, not executed.\n")
    print("| model | batch | card | compile time (s) | temporaries (MiB) |\n|---|---|---|---|---|", flush=True)
    failed = 0
    for line, compiled in rows():
        print(line, flush=True)
        failed += not compiled
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
