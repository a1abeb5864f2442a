"""What the host's processor can do, where the best way to compute depends on it."""

import functools
import re
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Of an x86 processor, as Linux names them; empty where nothing tells."""
    try:
        found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found[1].split()) if found else frozenset()


def multiplies_bfloat16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether it has instructions for bfloat16 products. Where nothing tells (not Linux, not x86): True."""
    found = flags(cpuinfo)
    return not found or not found.isdisjoint({"avx512_bf16", "amx_bf16"})
