"""What the user sees on stderr while the engine starts: phases, progress bars, and a table of the resolved settings.

stdout belongs to the results. Where stderr is not a terminal, plain lines take the place of bars.
"""

import sys
import time
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from xlaserve.engine.reporter import Reporter

BYTES = ", bytes"  # how the name of a progress ends that counts bytes


class _Amount(ProgressColumn):
    """done/total, bytes as MB or GB."""

    def render(self, task: Task) -> Text:
        counts_bytes = task.description.endswith(BYTES)
        done, total = (decimal(int(n)) if counts_bytes else str(int(n)) for n in (task.completed, task.total or 0))
        return Text(f"{done}/{total}")


class ConsoleReporter:
    """A Reporter: a context manager around start-up. `banner()` prints the settings gathered by then."""

    def __init__(self, stream: TextIO | None = None):
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._settings: list[tuple[str, str, str]] = []
        self._tasks: dict[str, TaskID] = {}
        self._started = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Amount(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> "ConsoleReporter":
        self._bars.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._bars.stop()

    def phase(self, name: str) -> None:
        seconds = time.monotonic() - self._started
        self._console.print(f"[{seconds:6.1f}s] {name}")

    def progress(self, name: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)

    def info(self, key: str, value: Any, reason: str) -> None:
        self._settings.append((key, str(value), reason))

    def banner(self) -> None:
        """Every resolved setting with its reason: a table, or plain lines where stderr is not a terminal."""
        if not self._console.is_terminal:
            for key, value, reason in self._settings:
                self._console.print(f"{key} = {value} ({reason})", soft_wrap=True)
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("setting", "value", "because"):
            table.add_column(column)
        for key, value, reason in self._settings:
            table.add_row(key, value, reason)
        self._console.print(table)


class Reporters:
    """Tells several reporters the same."""

    def __init__(self, *reporters: Reporter):
        self._reporters = reporters

    def phase(self, name: str) -> None:
        for reporter in self._reporters:
            reporter.phase(name)

    def progress(self, name: str, done: int, total: int) -> None:
        for reporter in self._reporters:
            reporter.progress(name, done, total)

    def info(self, key: str, value: Any, reason: str) -> None:
        for reporter in self._reporters:
            reporter.info(key, value, reason)
