"""What start-up tells of itself; the CLI shows it."""

from typing import Any, Protocol


class Reporter(Protocol):
    """The methods may be called from any thread."""

    def phase(self, name: str) -> None:
        """A new phase begins, e.g. "weights"; the one before has ended."""
        ...

    def progress(self, name: str, done: int, total: int) -> None:
        """`done` of `total` units of `name` (bytes, tensors, programs) are finished."""
        ...

    def info(self, key: str, value: Any, reason: str) -> None:
        """A resolved setting, and why it has its value."""
        ...


class SilentReporter:
    """For engines inside other programs."""

    def phase(self, name: str) -> None: ...

    def progress(self, name: str, done: int, total: int) -> None: ...

    def info(self, key: str, value: Any, reason: str) -> None: ...


class OfModel:
    """Says of which of several models it tells."""

    def __init__(self, name: str, reporter: Reporter):
        self._name = name
        self._reporter = reporter

    def phase(self, name: str) -> None:
        self._reporter.phase(f"{self._name}: {name}")

    def progress(self, name: str, done: int, total: int) -> None:
        self._reporter.progress(f"{self._name}: {name}", done, total)

    def info(self, key: str, value: Any, reason: str) -> None:
        self._reporter.info(f"{self._name}: {key}", value, reason)
