"""Chips that programs are compiled for without having one: how the compiler knows each, and its vendor's figures.

Imports nothing of the project. jax must look for no device: see the package.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

GIB = 2**30


@dataclass(frozen=True)
class Target:
    """One kind of chip. Rates are per chip, dense, in operations per second: a multiply and an add are two.

    A rate of None means the vendor states none: the chip has no such units.
    """

    platform: Literal["tpu", "cuda", "rocm"]
    kind: str  # as jax names the device
    hbm_bytes: int
    hbm_bandwidth: float  # bytes per second
    bf16: float
    int8: float | None
    fp8: float | None
    devices_per_chip: int = 1  # jax devices: a TPU7x chip is two
    cores: int | None = None  # TPU: tensor cores of a device
    topologies: tuple[str, ...] = ()  # TPU: libtpu's names, from small to large
    description: str = ""  # CUDA: the chip as XLA describes it, a text proto


def _cuda(
    kind: str, major: int, *, cores: int, ghz: float, l2: int, shared_per_core: int, hbm_bytes: int,
    hbm_bandwidth: float, **rates,
) -> Target:  # fmt: skip
    """`l2`, `shared_per_core`: bytes; a block may have all but 1 KiB of the latter."""
    description = f"""
        gpu_device_info {{
          threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
          shared_memory_per_core: {shared_per_core}  shared_memory_per_block_optin: {shared_per_core - 1024}
          threads_per_core_limit: 2048  core_count: {cores}  fpus_per_core: {64 if major == 8 else 128}
          block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
          memory_bandwidth: {hbm_bandwidth:.0f}  l2_cache_size: {l2}  clock_rate_ghz: {ghz}
          device_memory_size: {hbm_bytes}  cuda_compute_capability {{ major: {major} minor: 0 }}
          registers_per_core_limit: 65536  registers_per_block_limit: 65536
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 }}
        device_description_str: "{kind}"
    """
    return Target("cuda", kind, hbm_bytes, hbm_bandwidth, description=description, **rates)


_HOPPER: dict[str, Any] = dict(
    cores=132, ghz=1.98, l2=52_428_800, shared_per_core=233_472, bf16=989e12, int8=1979e12, fp8=1979e12
)

TARGETS: dict[str, Target] = {
    "v5e": Target(
        "tpu", "TPU v5 lite", 16 * GIB, 819e9, bf16=197e12, int8=394e12, fp8=None, cores=1,
        topologies=("v5e:2x2", "v5e:2x4", "v5e:4x4"),
    ),
    "v5p": Target(
        "tpu", "TPU v5", 95 * GIB, 2765e9, bf16=459e12, int8=918e12, fp8=459e12, cores=2,
        topologies=("v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4"),
    ),
    "v6e": Target(
        "tpu", "TPU v6 lite", 32 * GIB, 1638e9, bf16=918e12, int8=1836e12, fp8=918e12, cores=1,
        topologies=("v6e:2x2", "v6e:2x4", "v6e:4x4"),
    ),
    "v7x": Target(
        "tpu", "TPU7x", 192 * GIB, 7380e9, bf16=2307e12, int8=None, fp8=4614e12, cores=1, devices_per_chip=2,
        topologies=("tpu7x:2x2x1", "tpu7x:2x2x2"),
    ),
    "a100": _cuda(
        "NVIDIA A100-SXM4-80GB", 8, cores=108, ghz=1.41, l2=41_943_040, shared_per_core=167_936,
        hbm_bytes=85_198_045_184, hbm_bandwidth=2039e9, bf16=312e12, int8=624e12, fp8=None,
    ),
    "h100": _cuda("NVIDIA H100 80GB HBM3", 9, hbm_bytes=84_942_979_072, hbm_bandwidth=3352e9, **_HOPPER),
    "h200": _cuda("NVIDIA H200", 9, hbm_bytes=150_754_820_096, hbm_bandwidth=4800e9, **_HOPPER),
    "b200": _cuda(
        "NVIDIA B200", 10, cores=148, ghz=1.965, l2=132_644_864, shared_per_core=233_472,
        hbm_bytes=191_000_000_000, hbm_bandwidth=8000e9, bf16=2250e12, int8=4500e12, fp8=4500e12,
    ),
    "gfx942": Target("rocm", "gfx942", 192 * GIB, 5300e9, bf16=1307e12, int8=2615e12, fp8=2615e12),  # MI300X
    "gfx950": Target("rocm", "gfx950", 288 * GIB, 8000e9, bf16=2516e12, int8=5033e12, fp8=5033e12),  # MI355X
}  # fmt: skip

# Without a chip XLA cannot measure tiles for its Triton products, and takes some of 16x8: leave products to cuBLASLt.
OPTIONS: dict[str, dict[str, Any]] = {"cuda": {"xla_gpu_enable_triton_gemm": False}}


def find(name: str) -> Target:
    """Raises ValueError naming the choices."""
    if name not in TARGETS:
        raise ValueError(f"target {name!r}: must be one of {', '.join(TARGETS)}")
    return TARGETS[name]


def devices(target: str, count: int = 1) -> list[Any]:
    """`count` jax devices of the smallest topology that has as many; they can be compiled for, and nothing else.

    Needs libtpu or jax's CUDA plugin. Raises ValueError where no such topology is known.
    """
    chip = find(target)
    if chip.platform == "cuda":
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name=target, topology=f"1x1x{count}", target_config=chip.description
        )
        return list(topology.devices)
    for name in chip.topologies:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
        if len(found) >= count:
            return list(found[:count])
    raise ValueError(f"target {target!r}: no topology of {count} devices is known for it, only {chip.topologies}")


def abstract_mesh(target: str) -> AbstractMesh:
    """The mesh to trace and lower under, so that Pallas knows the chip. Needs no plugin."""
    chip = find(target)
    platform = "tpu" if chip.platform == "tpu" else "gpu"
    return AbstractMesh((), (), abstract_device=AbstractDevice(chip.kind, chip.cores, platform))


def lower(function: Callable, arguments: Sequence[Any], target: str) -> jax.stages.Lowered:
    """The program before the target's own compiler sees it. `arguments`: trees of ShapeDtypeStruct. Needs no plugin."""
    with jax.sharding.use_abstract_mesh(abstract_mesh(target)):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=(find(target).platform,))


def compile(
    function: Callable, arguments: Sequence[Any], target: str, *, donate: Sequence[int] = (), out_shardings: Any = None,
    options: Mapping[str, Any] = MappingProxyType({}), dump_to: str | None = None,
) -> jax.stages.Compiled:  # fmt: skip
    """Machine code for one device of `target`, or for those that the arguments' shardings name.

    `arguments`: trees of ShapeDtypeStruct; those without a sharding are on the target's first device, and so are then
    the results. `donate`: positions. `options`: of XLA. `dump_to`: a folder for what XLA tells of GPU code.
    """
    chip = find(target)
    here = SingleDeviceSharding(devices(target)[0])
    placed = jax.tree.map(lambda x: x if x.sharding else x.update(sharding=here), tuple(arguments))
    jitted = jax.jit(function, donate_argnums=tuple(donate), out_shardings=out_shardings or here)
    with _known_chip(target, placed):
        lowered = jitted.lower(*placed)
    dump = {"xla_dump_to": dump_to, "xla_dump_emitter_re": "ptx"} if dump_to and chip.platform == "cuda" else {}
    return lowered.compile(compiler_options={**OPTIONS.get(chip.platform, {}), **options, **dump})


def _known_chip(target: str, arguments: Any) -> AbstractContextManager:
    """Where no mesh of several devices tells Pallas the chip, an abstract one has to."""
    several = any(len(x.sharding.device_set) > 1 for x in jax.tree.leaves(arguments))
    return nullcontext() if several else jax.sharding.use_abstract_mesh(abstract_mesh(target))
