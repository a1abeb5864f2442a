"""One program through XLA, for devices that are here or for others."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from xlaserve.sharding import mesh_of

# By platform. XLA joins products of the same input by copying their weights side by side first, in every step: of
# Llama-3.1-8B's those of q, k and v, 1.6 GB, and with tensor parallelism those of gate and up too.
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {"gpu": {"xla_gpu_dot_merger_threshold_mb": 0}}
# Likewise for devices that are not here: without a card XLA cannot measure tiles for Triton products, and takes some
# of 16x8. cuBLASLt chooses when it runs.
UNMEASURED_OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False}}


def compile_program(lower: Callable[[], Lowered], sharding: NamedSharding) -> Compiled:
    """`lower`: traces and lowers a program for the devices of `sharding`."""
    options = compiler_options(sharding) or None
    if not is_absent(sharding):
        return lower().compile(options)
    with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):  # tells Pallas the chip
        lowered = lower()
    return lowered.compile(options)


def compiler_options(sharding: NamedSharding) -> dict[str, Any]:
    platform = mesh_of(sharding).devices.flat[0].platform
    unmeasured = UNMEASURED_OPTIONS.get(platform, {}) if is_absent(sharding) else {}
    return COMPILER_OPTIONS.get(platform, {}) | unmeasured


def is_absent(sharding: NamedSharding) -> bool:
    """Whether its devices are those of a target, not of this process."""
    return mesh_of(sharding).devices.flat[0] not in jax.devices()
