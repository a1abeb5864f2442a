"""One program through XLA, for devices that are here or for others."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered
from jaxlib.mlir.passmanager import PassManager

from xlaserve.sharding import mesh_of

# By platform. XLA joins products of the same input by copying their weights side by side first, in every step: of
# Llama-3.1-8B's those of q, k and v, 1.6 GB, and with tensor parallelism those of gate and up too.
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {"gpu": {"xla_gpu_dot_merger_threshold_mb": 0}}
# Likewise for devices that are not here: without a card XLA cannot measure tiles for Triton products, and takes some
# of 16x8. cuBLASLt chooses when it runs.
UNMEASURED_OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False}}

# XLA keeps programs as text, with sources a twentieth more; that is the host's memory, and no profile shows them there.
WITHOUT_SOURCES = ("cpu",)


def compile_program(lower: Callable[[], Lowered], sharding: NamedSharding) -> Compiled:
    """`lower`: traces and lowers a program for the devices of `sharding`."""
    options = compiler_options(sharding) or None
    if not is_absent(sharding):
        lowered = lower()
        if platform_of(sharding) in WITHOUT_SOURCES:
            _forget_sources(lowered)
        return lowered.compile(options)
    with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):  # tells Pallas the chip
        lowered = lower()
    return lowered.compile(options)


def _forget_sources(lowered: Lowered) -> None:
    """In place: from which lines of Python the instructions come, and their names."""
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)


def platform_of(sharding: NamedSharding) -> str:
    return mesh_of(sharding).devices.flat[0].platform


def compiler_options(sharding: NamedSharding) -> dict[str, Any]:
    platform = platform_of(sharding)
    unmeasured = UNMEASURED_OPTIONS.get(platform, {}) if is_absent(sharding) else {}
    return COMPILER_OPTIONS.get(platform, {}) | unmeasured


def is_absent(sharding: NamedSharding) -> bool:
    """Whether its devices are those of a target, not of this process."""
    return mesh_of(sharding).devices.flat[0] not in jax.devices()
