"""Programs that work on what clients send, in processes of their own: killed when they take too long or too much."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xlaserve.errors import Overloaded

MAX_WAIT = 20.0  # seconds for a turn


class Refused(Exception):
    """Says what is wrong with what was sent."""


class Child:
    """One program: a file that reads JSON from its standard input, and writes a JSON object.

    task: what it does, as an infinitive. memory: bytes of address space. max_at_once: runs at the same time, so that
    hostile clients leave cores for the rest. Its arguments are `memory` and the `folders` that it may import from.
    """

    def __init__(self, program: Path, folders: Sequence[Path], *, task: str, memory: int, max_at_once: int):
        # -I -S: no site-packages and no environment, whose start-up would take longer than the work
        self._command = [sys.executable, "-I", "-S", str(program), str(memory), *map(str, folders)]
        self._task = task
        self._turns = threading.BoundedSemaphore(max_at_once)

    def run(self, asked: Any, *, seconds: float) -> dict[str, Any]:
        """What it answers. Takes a tenth of a second at least.

        Raises Refused when it was killed, and Overloaded when others leave no turn for it.
        """
        if not self._turns.acquire(timeout=MAX_WAIT):
            message = f"The server has too much to {self._task}: try again in a moment."
            raise Overloaded(message, retry_after=int(seconds))
        try:
            return self._run(json.dumps(asked), seconds)
        finally:
            self._turns.release()

    def _run(self, asked: str, seconds: float) -> dict[str, Any]:
        try:
            done = subprocess.run(
                self._command, input=asked, capture_output=True, timeout=seconds, text=True, encoding="utf-8"
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"takes longer than {seconds:g} seconds to {self._task}; make it simpler") from None
        if done.returncode != 0:  # out of memory, as a rule
            raise Refused(f"is too complex to {self._task}; make it simpler")
        return json.loads(done.stdout)
