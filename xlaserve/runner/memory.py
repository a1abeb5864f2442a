"""How much memory there is: of a device by its own account, and of the host."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DeviceMemory:
    total: int  # bytes that the runtime may use: on NVIDIA GPUs a part of the card, see XLA_PYTHON_CLIENT_MEM_FRACTION
    in_use: int  # bytes


def device_memory(device: Any) -> DeviceMemory | None:
    """None where the device reports nothing, as CPUs do: their memory is the host's."""
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return DeviceMemory(stats["bytes_limit"], stats.get("bytes_in_use", 0))


def available_host_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without swapping, within the limits of the process's control groups; None if unknown.

    Reads Linux's /proc/meminfo and both versions of control groups under `root`.
    """
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    available = [int(found[1]) * 1024] if found else []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            available += _left_in_groups(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            files = "memory.limit_in_bytes", "memory.usage_in_bytes"
            available += _left_in_groups(root / "sys/fs/cgroup/memory", path, *files)
    return min(available, default=None)


def _left_in_groups(mount: Path, path: str, limit_file: str, usage_file: str) -> list[int]:
    """Of the group at `path` and all above it. In a container the mount may be the group itself and lack that path."""
    group = mount / path.strip("/")
    left = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            break
        limit, usage = _read(folder / limit_file).strip(), _read(folder / usage_file).strip()
        if limit.isdigit() and usage.isdigit():
            # Files that were read are counted as used, but given up on demand.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", _read(folder / "memory.stat"), re.MULTILINE)
            left.append(max(0, int(limit) - int(usage) + (int(cached[1]) if cached else 0)))
    return left


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
