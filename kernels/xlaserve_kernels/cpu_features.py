"""What the host's processor can do, where the best way to compute depends on it."""

import functools
import re
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def multiplies_bfloat16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether it has instructions for bfloat16 products. Where nothing tells (not Linux, not x86): True."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return True
    return flags is None or not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags[1].split())
