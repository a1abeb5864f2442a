"""What the user sees on stderr while the engine starts: phases, progress bars, and a table of the resolved settings.

stdout belongs to the results. Where stderr is not a terminal, plain lines take the place of bars.
"""

import sys
import time
from types import TracebackType
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table


class Reporter(Protocol):
    """What start-up tells of itself. The methods may be called from any thread."""

    def phase(self, name: str) -> None:
        """A new phase begins, e.g. "weights"; the one before has ended."""
        ...

    def progress(self, name: str, done: int, total: int) -> None:
        """`done` of `total` units of `name` (bytes, tensors, programs) are finished."""
        ...

    def info(self, key: str, value: Any, reason: str) -> None:
        """A resolved setting, and why it has its value."""
        ...


class ConsoleReporter:
    """Use as a context manager around start-up. `banner()` prints the settings gathered by then."""

    def __init__(self, stream: TextIO | None = None):
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._settings: list[tuple[str, str, str]] = []
        self._tasks: dict[str, TaskID] = {}
        self._started = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
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
        self._console.print(f"[{seconds:6.1f}s] {name}", markup=False)

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
                self._console.print(f"{key} = {value} ({reason})", markup=False, soft_wrap=True)
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
