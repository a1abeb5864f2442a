"""How many bytes the KV pools may take: what the config says, a share of the device's memory, or of the host's.

Where a device has memory of its own it is measured what the programs need. The weights are abstract then, to be read
later: so it takes no memory, and what cannot fit is told in seconds. The price is one more compilation of the largest
body, which the compilation cache keeps. For a budget that is given, or the host's, none of that is done.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from xlaserve.config import CacheSection
from xlaserve.engine.settings import Settings
from xlaserve.errors import ConfigError
from xlaserve.models.kv_spec import kv_specs
from xlaserve.runner.memory import DeviceMemory, available_host_memory
from xlaserve.runner.program_memory import ProgramMemory
from xlaserve.runner.programs import ProgramShapes

MIB = 2**20
HOST_DEFAULT_BYTES, HOST_LEAST_BYTES = 2**30, 16 * MIB  # the host's memory is wanted by others too
DEFAULT_UTILIZATION = 0.9  # of the device's memory
STEP_BYTES = (
    16 * MIB
)  # budgets are rounded to it: a few bytes more in use would make other programs, which no cache has
STEP_TRANSFER_BYTES = 128 * MIB  # that a step brings to the host at most, and back: 5 ms at 25 GB/s
PROBE_BLOCKS = 64  # of each group, while it is measured what the programs need
Probe = Callable[[ProgramShapes], ProgramMemory]


@dataclass(frozen=True)
class Budget:
    """For all KV pools together."""

    num_bytes: int
    reason: str
    remedy: Callable[[int], str]  # "set ..." for a budget of this many bytes


def kv_budget(
    section: CacheSection,
    settings: Settings,
    weight_bytes: int,
    memory: DeviceMemory | None,
    probe: Probe,
) -> Budget:
    """All bytes are those of one device. memory: None on a device that uses the host's. probe: tells what programs need
    beside small pools.

    Raises ConfigError when weights and programs leave nothing, and for a share of a memory whose size is not known.
    """
    if section.memory is not None:
        return Budget(section.memory, f"cache.memory: {mib(section.memory)}", _set_memory)
    if memory is None:
        if section.memory_utilization is not None:
            raise ConfigError(
                f"cache.memory_utilization is {section.memory_utilization}: this device does not tell how much memory "
                "it has; set cache.memory"
            )
        return _of_host(weight_bytes)
    share = DEFAULT_UTILIZATION if section.memory_utilization is None else section.memory_utilization
    allowed, needed = int(share * memory.total), 0
    left = allowed - memory.in_use - weight_bytes
    if left > 0:  # else the compiler would find that they do not fit, and say so less clearly
        shapes = settings.shapes((PROBE_BLOCKS,) * len(kv_specs(settings.model)), settings.max_model_len)
        needed = probe(shapes).num_bytes
        if section.host_memory is not None:
            needed += 2 * 2 * STEP_TRANSFER_BYTES  # two steps may be under way
        left -= needed
    spent = f"{mib(weight_bytes)} of weights, {mib(needed)} for programs and {mib(memory.in_use)} in use"
    reason = f"cache.memory_utilization: {share:.0%} of {mib(memory.total)}, less {spent}"
    if left < STEP_BYTES:
        raise ConfigError(f"{reason}: nothing is left for the KV pool")
    num_bytes = left // STEP_BYTES * STEP_BYTES

    def remedy(wanted: int) -> str:
        share = (allowed - num_bytes + wanted + STEP_BYTES) / memory.total
        if share > 1:
            return f"take a device with {mib(wanted - num_bytes)} more"
        return f"set cache.memory_utilization to {math.ceil(100 * share) / 100}"

    return Budget(num_bytes, reason, remedy)


def _of_host(weight_bytes: int) -> Budget:
    """The default, halved until it is no more than half of what the host has left beside the weights."""
    available = available_host_memory()
    num_bytes, reason = HOST_DEFAULT_BYTES, "by default in host memory"
    if available is not None:
        while num_bytes > HOST_LEAST_BYTES and num_bytes > (available - weight_bytes) // 2:
            num_bytes //= 2
        if num_bytes < HOST_DEFAULT_BYTES:
            reason = f"of the {mib(available)} that the host has left, weights included"
    return Budget(num_bytes, f"{mib(num_bytes)} {reason}", _set_memory)


def _set_memory(wanted: int) -> str:
    return f"set cache.memory to {math.ceil(wanted / MIB)}MiB"


def mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"
