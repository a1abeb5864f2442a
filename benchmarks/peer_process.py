"""Peers as processes: a limit on every wait, resident memory of all that one has started, and all of it ended."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

READY_SECONDS = 600.0
RUN_SECONDS = 900.0  # of what ends by itself
STOP_SECONDS = 30.0
SHOWN = 2000  # bytes of what a failed one has written


class PeerFailed(Exception):
    """One that cannot be measured; the message has the end of what it wrote."""


@dataclass(frozen=True)
class Peer:
    """A process that leads a session of its own, by which those that it has started are found."""

    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    started: float  # of time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.perf_counter() - self.started

    def written(self) -> bytes:
        """To stdout so far."""
        return os.pread(self.stdout.fileno(), 2**24, 0)

    def wait(self, condition: Callable[[], object], limit: float, what: str) -> None:
        """Raises PeerFailed where it ends, or has not come so far after `limit` seconds."""
        deadline = time.perf_counter() + limit
        while not condition():
            if self.process.poll() is not None and not condition():
                raise self.failed(f"ended with exit code {self.process.returncode} before it was {what}")
            if time.perf_counter() > deadline:
                raise self.failed(f"is not {what} after {limit:.0f} s")
            time.sleep(0.05)

    def failed(self, what: str) -> PeerFailed:
        ends = (os.pread(file.fileno(), 2**24, 0)[-SHOWN:] for file in (self.stdout, self.stderr))
        return PeerFailed(f"{self.process.args}: {what}\n" + b"\n".join(ends).decode(errors="replace"))

    def memory_mib(self, kind: str) -> float:
        """Of all its processes together; what several of them map counts for each. kind: VmRSS, or VmHWM for the most
        that each has had."""
        return sum(_status_kib(pid, kind) for pid in _session(self.process.pid)) / 1024

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        for pid in _session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


def _session(leader: int) -> list[int]:
    """Ids of its processes that are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                found.append(int(folder.name))
    return found


def _status_kib(pid: int, kind: str) -> int:
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next((int(line.split()[1]) for line in status if line.startswith(f"{kind}:")), 0)
    return 0


@contextmanager
def running(command: Sequence[str]) -> Iterator[Peer]:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        peer = Peer(process, stdout, stderr, started)
        try:
            yield peer
        finally:
            peer.stop()


@contextmanager
def server(command: Sequence[str], health: str) -> Iterator[tuple[str, float, Peer]]:
    """(URL, seconds until a GET of `health` succeeds, process). `{port}` in `command` becomes a free port.

    Raises PeerFailed.
    """
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with running([part.replace("{port}", str(port)) for part in command]) as peer:
        peer.wait(lambda: _succeeds(url + health), READY_SECONDS, "ready")
        yield url, peer.seconds, peer


def _succeeds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:  # not bound yet, or an error's status
        return False


def offline(command: Sequence[str]) -> tuple[float, list[dict[str, Any]], float]:
    """(seconds until it wrote a first line, the lines after that, each an object of JSON, peak MiB) of one that ends.

    Raises PeerFailed.
    """
    peak = 0.0

    def has_ended() -> bool:
        nonlocal peak
        peak = max(peak, peer.memory_mib("VmHWM"))
        return peer.process.poll() == 0

    with running(command) as peer:
        peer.wait(lambda: b"\n" in peer.written(), READY_SECONDS, "ready")
        ready = peer.seconds
        peer.wait(has_ended, RUN_SECONDS, "done")
        return ready, [json.loads(line) for line in peer.written().splitlines()[1:]], peak
