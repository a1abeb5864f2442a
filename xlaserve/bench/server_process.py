"""A server for a benchmark: `xlaserve serve` in a process of its own, on a free port."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xlaserve.errors import XlaserveError

READY_SECONDS = 900.0
_SERVE = (sys.executable, "-c", "from xlaserve.cli.main import main; main(prog_name='xlaserve')", "serve")


class ServerFailed(XlaserveError):
    """The server cannot be measured; the message says why."""


@contextmanager
def serving(arguments: Sequence[str]) -> Iterator[str]:
    """`xlaserve serve ARGUMENTS` on a free port, ready; yields its URL. Its start-up shows on stderr.

    Raises ServerFailed where it does not get ready.
    """
    with serving_process(arguments) as (url, _):
        yield url


@contextmanager
def serving_process(arguments: Sequence[str], command: Sequence[str] = _SERVE) -> Iterator[tuple[str, int]]:
    """The same, with the id of its process. command: what serves, in place of `xlaserve serve`."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen([*command, *arguments, "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, url)
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _wait_until_ready(process: subprocess.Popen, url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with exit code {process.returncode}")
        try:
            get(f"{url}/ready")
        except urllib.error.URLError:  # not bound yet, or 503
            time.sleep(0.2)
        else:
            return
    raise ServerFailed(f"the server was not ready after {READY_SECONDS:.0f} s")


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()
