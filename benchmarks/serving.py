"""Starts `xlaserve serve`, puts the load of benchmarks/load.py on it, prints one table, and stops it.

    python -m benchmarks.serving                                   # the demo model
    python -m benchmarks.serving --peer                            # and then transformers' generate, in the same run
    python -m benchmarks.serving -- --set model.dtype=float32      # after --: whatever `xlaserve serve` takes

The prefix cache is off, as the loads repeat their prompts. `compiled` counts programs compiled while the load ran: 0,
or requests have waited for one. Needs the extra `bench`; the peer needs the extra `record` (torch).
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.load import Load, run
from xlaserve.bench.server_process import get, serving

LOADS = {
    "c=1": Load(num_requests=10, concurrency=1),
    "c=8": Load(num_requests=34, concurrency=8),
    "c=16": Load(num_requests=34, concurrency=16),
    "mixed lengths, c=16": Load(num_requests=48, concurrency=16, mixed=True),
}
COLUMNS = ("tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "ok", "compiled")
_COMPILATIONS = re.compile(rb"^xlaserve:compilations_total\{.*\} (\S+)$", re.MULTILINE)


def measure(url: str) -> Iterator[dict[str, Any]]:
    """One row per load."""
    model = json.loads(get(f"{url}/v1/models"))["data"][0]["id"]
    for name, load in LOADS.items():
        before = _compilations(url)
        row = asyncio.run(run(url, model, load))
        if row["errors"] or row["short"]:
            raise SystemExit(f"{name}: {row['short']} answers too short, errors: {row['errors']}")
        yield {"load": f"xlaserve, {name}"} | row | {"compiled": _compilations(url) - before}


def _compilations(url: str) -> int:
    return sum(int(float(count)) for count in _COMPILATIONS.findall(get(f"{url}/metrics")))


def measure_peer() -> Iterator[dict[str, Any]]:
    """One row per dtype and batch size, as soon as it is measured, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.transformers_generate"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for row in map(json.loads, process.stdout):
            yield {"load": f"transformers generate, {row['dtype']}, batch of {row['concurrency']}"} | row
    if process.returncode:
        raise SystemExit(f"benchmarks.transformers_generate ended with exit code {process.returncode}")


def print_table(rows: Iterable[dict[str, Any]]) -> None:
    """In Markdown, each row as soon as it is measured."""
    print("| " + " | ".join(["load", *COLUMNS]) + " |")
    print("|---" * (1 + len(COLUMNS)) + "|", flush=True)
    for row in rows:
        print("| " + " | ".join(str(row.get(column, "")) for column in ("load", *COLUMNS)) + " |", flush=True)


def measure_all(serve: list[str], peer: bool) -> Iterator[dict[str, Any]]:
    with serving([*serve, "--set", "cache.prefix_caching=false"]) as url:  # the loads repeat prompts
        yield from measure(url)
    if peer:
        yield from measure_peer()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="measure transformers' generate too, on the demo model")
    parser.add_argument("serve", nargs="*", help="arguments of `xlaserve serve`")
    args = parser.parse_args()
    print_table(measure_all(args.serve, args.peer))


if __name__ == "__main__":
    main()
