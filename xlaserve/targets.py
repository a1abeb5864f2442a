"""Hardware that programs are compiled for without having it: how compilers know each chip, and its vendor's figures.

A target is a number of devices of one chip in one machine: `tpu-v5e-8`, `h100x4`, or `cpu`, which is this machine's.
The number counts jax devices: a TPU7x chip is two of them. Compiling needs libtpu, or jax's CUDA plugin, and a process
that looks for no device (JAX_PLATFORMS=cpu); the table needs neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh

from xlaserve.errors import ConfigError

GIB = 2**30
GPU_COUNTS = (1, 2, 4, 8)
GPU_SHARE = 0.75  # of a card's memory: what XLA takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
CPU = "cpu"
_COMPILERS = {  # by platform: modules, one of which has it, and what installs one
    "tpu": (("libtpu",), "libtpu: pip install 'xlaserve[compilers]'"),
    "cuda": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "jax's CUDA plugin: pip install 'xlaserve[compilers]'"),
}


@dataclass(frozen=True)
class Chip:
    """Rates are per chip, dense, in operations per second: a multiply and an add are two.

    A rate of None means the vendor states none: the chip has no such units.
    """

    platform: Literal["tpu", "cuda", "rocm"]
    kind: str  # as jax names the device
    hbm_bytes: int
    hbm_bandwidth: float  # bytes per second
    bf16: float
    int8: float | None
    fp8: float | None
    topologies: Mapping[int, str] = field(
        default_factory=dict
    )  # by number of devices, ascending; none: no compiler is at hand
    devices_per_chip: int = 1  # jax devices: a TPU7x chip is two
    cores: int | None = None  # TPU: tensor cores of a device
    usable_bytes: int | None = None  # TPU: of a device's memory, by its compiler's account
    description: str = ""  # CUDA: the chip as XLA describes it, a text proto


def _cuda(
    kind: str, major: int, *, cores: int, ghz: float, l2: int, shared_per_core: int, hbm_bytes: int,
    hbm_bandwidth: float, **rates,
) -> Chip:  # fmt: skip
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
    topology = {count: f"1x1x{count}" for count in GPU_COUNTS}  # of one machine
    return Chip("cuda", kind, hbm_bytes, hbm_bandwidth, topologies=topology, description=description, **rates)


_HOPPER: dict[str, Any] = dict(
    cores=132, ghz=1.98, l2=52_428_800, shared_per_core=233_472, bf16=989e12, int8=1979e12, fp8=1979e12
)

CHIPS: dict[str, Chip] = {
    "v5e": Chip(
        "tpu", "TPU v5 lite", 16 * GIB, 819e9, bf16=197e12, int8=394e12, fp8=None, cores=1,
        usable_bytes=int(15.75 * GIB), topologies={1: "v5e:1x1", 4: "v5e:2x2", 8: "v5e:2x4"},
    ),
    "v5p": Chip(
        "tpu", "TPU v5", 95 * GIB, 2765e9, bf16=459e12, int8=918e12, fp8=459e12, cores=2,
        usable_bytes=int(95.73 * GIB), topologies={1: "v5p:1x1x1", 4: "v5p:2x2x1", 8: "v5p:2x2x2"},
    ),
    "v6e": Chip(
        "tpu", "TPU v6 lite", 32 * GIB, 1638e9, bf16=918e12, int8=1836e12, fp8=918e12, cores=1,
        usable_bytes=int(31.24 * GIB), topologies={1: "v6e:1x1", 4: "v6e:2x2", 8: "v6e:2x4"},
    ),
    "v7x": Chip(
        "tpu", "TPU7x", 192 * GIB, 7380e9, bf16=2307e12, int8=None, fp8=4614e12, cores=1, devices_per_chip=2,
        usable_bytes=int(94.74 * GIB), topologies={2: "tpu7x:1x1x1", 8: "tpu7x:2x2x1"},
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
    "gfx942": Chip("rocm", "gfx942", 192 * GIB, 5300e9, bf16=1307e12, int8=2615e12, fp8=2615e12),  # MI300X
    "gfx950": Chip("rocm", "gfx950", 288 * GIB, 8000e9, bf16=2516e12, int8=5033e12, fp8=5033e12),  # MI355X
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """`num_devices` of `chip`, which share the model; without a chip it is this machine's CPU."""

    name: str
    chip: Chip | None = None
    num_devices: int = 1

    @property
    def platform(self) -> str:
        """As jax names it."""
        return CPU if self.chip is None else jax_platform(self.chip)

    def usable_bytes(self, gpu_share: float = GPU_SHARE) -> int | None:
        """Of a device's memory, what jax gets; None for a CPU, which uses the host's."""
        if self.chip is None:
            return None
        return self.chip.usable_bytes or int(gpu_share * self.chip.hbm_bytes)

    def has_compiler(self) -> bool:
        """Whether it is installed here."""
        return self.chip is None or has_compiler(self.chip)

    def devices(self) -> list[Any]:
        """Raises ConfigError where its compiler is not installed."""
        return jax.devices(CPU)[:1] if self.chip is None else devices(self.name, self.chip, self.num_devices)


def _named(chip_name: str, count: int) -> str:
    return f"tpu-{chip_name}-{count}" if CHIPS[chip_name].platform == "tpu" else f"{chip_name}x{count}"


TARGETS: dict[str, Target] = {CPU: Target(CPU)} | {
    _named(name, count): Target(_named(name, count), chip, count)
    for name, chip in CHIPS.items()
    for count in chip.topologies
}


def find_target(name: str) -> Target:
    """`h100` is `h100x1`. Raises ConfigError naming the choices."""
    found = TARGETS.get(name) or TARGETS.get(f"{name}x1")
    if found is None:
        raise ConfigError(f"target {name!r}: must be one of {', '.join(TARGETS)} (x1 may be left out)")
    return found


def find_chip(name: str) -> Chip:
    """Raises ConfigError naming the choices."""
    if name not in CHIPS:
        raise ConfigError(f"chip {name!r}: must be one of {', '.join(CHIPS)}")
    return CHIPS[name]


def chip_of_kind(kind: str) -> Chip | None:
    """By jax's name of the device; None for one that is not in the table."""
    return next((chip for chip in CHIPS.values() if chip.kind == kind), None)


def jax_platform(chip: Chip) -> str:
    return "tpu" if chip.platform == "tpu" else "gpu"


def has_compiler(chip: Chip) -> bool:
    modules, _ = _COMPILERS.get(chip.platform, ((), ""))
    return any(find_spec(module) for module in modules)


def devices(name: str, chip: Chip, count: int = 1) -> list[Any]:
    """`count` jax devices of the smallest topology that has as many; they can be compiled for, and nothing else.

    Raises ConfigError where no such topology is known, or its compiler is not installed.
    """
    size = next((size for size in chip.topologies if size >= count), None)
    if size is None:
        raise ConfigError(f"{name}: no topology of {count} devices is known for it, only {dict(chip.topologies)}")
    if not has_compiler(chip):
        raise ConfigError(f"{name}: its compiler is not installed here; it comes with {_COMPILERS[chip.platform][1]}")
    topology = chip.topologies[size]
    if chip.platform == "cuda":
        found = topologies.get_topology_desc(
            platform="cuda", topology_name=chip.kind, topology=topology, target_config=chip.description
        )
    else:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    return list(found.devices)[:count]


def abstract_mesh(chip: Chip) -> AbstractMesh:
    """The mesh to trace and lower under, so that Pallas knows the chip. Needs no compiler of its own."""
    return AbstractMesh((), (), abstract_device=AbstractDevice(chip.kind, chip.cores, jax_platform(chip)))
