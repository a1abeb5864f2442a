"""Starts of a deployment in processes of their own, and what their times are in the middle. It knows nothing of tables.

Three kinds: "cold" compiles everything, "warm cache" finds it in the persistent compilation cache, "bundle" loads it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from xlaserve.errors import XlaserveError

KINDS = ("cold", "warm cache", "bundle")
FIRST_TOKEN = "first token"  # the last phase
LIMIT = 3600.0  # seconds for one process


class StartFailed(XlaserveError):
    """A process did not come to its first token; the message ends with what it wrote."""


@dataclass(frozen=True)
class Start:
    """Times in seconds from the start of the process."""

    spans: tuple[tuple[str, float, float], ...]  # name, start, end; in the order of their starts
    total: float  # to the first token
    compiled: int
    cache_hits: int
    loaded: int


def measure(
    config_file: Path | None, settings: Sequence[str], folder: Path, runs: int, announce: Callable[[str], None]
) -> dict[str, list[Start]]:
    """By kind; in turns, so that what else the machine does falls on all kinds. `folder`: empty, for caches.

    Raises StartFailed.
    """
    announce("building the bundle")
    bundle = folder / "bundle"
    options = [] if config_file is None else ["--config", str(config_file)]
    options += [part for setting in settings for part in ("--set", setting)]
    command = "from xlaserve.cli.main import main; main()"
    _run([sys.executable, "-c", command, "build", *options, "--out", str(bundle)])
    found: dict[str, list[Start]] = {kind: [] for kind in KINDS}
    for number in range(runs):
        own = {
            "cold": [f"compile.cache_dir={folder / f'cold-{number}'}"],
            "warm cache": [f"compile.cache_dir={folder / 'cold-0'}"],
            "bundle": [
                f"compile.cache_dir={folder / 'unused'}", f"compile.bundle={bundle}", "compile.bundle_strict=true",
            ],
        }  # fmt: skip
        for kind in KINDS:
            announce(f"run {number + 1} of {runs}: {kind}")
            found[kind].append(run_once(config_file, [*settings, *own[kind]]))
    return found


def medians(starts: Sequence[Start]) -> dict[str, Any]:
    """For each phase when it starts and ends, in the middle, and so the total; the starts are of one kind."""
    phases: dict[str, list[float]] = {}
    for name in dict.fromkeys(name for start in starts for name, _, _ in start.spans):
        found = [(begin, end) for start in starts for other, begin, end in start.spans if other == name]
        phases[name] = [median(begin for begin, _ in found), median(end for _, end in found)]
    counts = {name: median(getattr(start, name) for start in starts) for name in ("compiled", "cache_hits", "loaded")}
    return {"total": median(start.total for start in starts), "phases": phases} | counts


def run_once(config_file: Path | None, settings: Sequence[str]) -> Start:
    """A process of its own up to its first token. Raises StartFailed."""
    began = time.time()
    arguments = ["" if config_file is None else str(config_file), *settings]
    output = _run([sys.executable, "-m", "xlaserve.cli.startup_probe", *arguments])
    result = json.loads(output.splitlines()[-1])
    spans = tuple((name, start - began, end - began) for name, start, end in _with_python(result["spans"], began))
    counts = {name: result[name] for name in ("compiled", "cache_hits", "loaded")}
    (total,) = (end for name, _, end in spans if name == FIRST_TOKEN)
    return Start(spans, total, **counts)


def _with_python(spans: list[tuple[str, float, float]], began: float) -> Iterator[tuple[str, float, float]]:
    """With what the interpreter takes before it reads our first line."""
    yield "start Python", began, spans[0][1]
    yield from spans


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise StartFailed(f"{' '.join(command)}: not done after {LIMIT:.0f} s") from None
    if done.returncode:
        raise StartFailed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
