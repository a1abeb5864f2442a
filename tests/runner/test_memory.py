"""How much memory there is, by what devices and Linux say."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from xlaserve.runner.memory import DeviceMemory, available_host_memory, device_memory

MEMINFO = "MemTotal:       24684240 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n"


def test_of_a_device():
    def device(stats) -> SimpleNamespace:
        return SimpleNamespace(memory_stats=lambda: stats)

    assert device_memory(device({"bytes_limit": 1000, "bytes_in_use": 100})) == DeviceMemory(1000, 100)
    assert device_memory(device({"bytes_limit": 1000})) == DeviceMemory(1000, 0)
    assert device_memory(device({"bytes_in_use": 100})) is None
    assert device_memory(device(None)) is None


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2, V1 = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"
UNLIMITED = "9223372036854771712\n"  # of version 1
CASES = {
    "nothing is known": ({}, None),
    "no groups": ({"proc/meminfo": MEMINFO}, 2_048_000_000),
    "a limit, version 2": (
        {"proc/self/cgroup": "0::/a/b\n", V2 + "a/b/memory.max": "1000\n", V2 + "a/b/memory.current": "300\n"},
        700,
    ),
    "what was read from files is given up": (
        {
            "proc/self/cgroup": "0::/\n", V2 + "memory.max": "1000\n", V2 + "memory.current": "900\n",
            V2 + "memory.stat": "anon 100\ninactive_file 500\n",
        },
        600,
    ),
    "the tightest of nested groups": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            V2 + "a/memory.max": "500\n", V2 + "a/memory.current": "100\n",
            V2 + "a/b/memory.max": "max\n", V2 + "a/b/memory.current": "50\n",
        },
        400,
    ),
    "a limit, version 1, the container's own mount": (
        {
            "proc/self/cgroup": "12:cpu:/x\n4:memory:/docker/123\n0::/\n",
            V1 + "memory.limit_in_bytes": "1000\n", V1 + "memory.usage_in_bytes": "300\n",
            V1 + "memory.stat": "inactive_file 1\ntotal_inactive_file 1\n",
        },
        701,
    ),
    "no limit, version 1": (
        {
            "proc/self/cgroup": "4:memory:/\n",
            V1 + "memory.limit_in_bytes": UNLIMITED, V1 + "memory.usage_in_bytes": "300\n",
        },
        2_048_000_000,
    ),
    "more in use than allowed": (
        {"proc/self/cgroup": "0::/\n", V2 + "memory.max": "1000\n", V2 + "memory.current": "1100\n"},
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_of_the_host(case, tmp_path):
    files, expected = CASES[case]
    if files:
        files = {"proc/meminfo": MEMINFO} | files
    assert available_host_memory(tree(tmp_path, files)) == expected


def test_of_this_host():
    available = available_host_memory()
    assert available is not None
    assert available > 2**20
