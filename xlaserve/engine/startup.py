"""How long start-up took, phase by phase."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xlaserve.engine.reporter import Reporter
from xlaserve.runner.late_programs import LateStatus


@dataclass(frozen=True)
class Span:
    name: str
    start: float  # of time.monotonic()
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class StartupClock:
    """A Reporter that takes the time of each phase and tells another one of it."""

    def __init__(self, reporter: Reporter):
        self._reporter = reporter
        self._spans: list[Span] = []
        self._current: tuple[str, float] | None = None
        self._lock = threading.Lock()

    @property
    def spans(self) -> Sequence[Span]:
        """Of the phases that have ended, in the order of their beginnings."""
        with self._lock:
            return sorted(self._spans, key=lambda span: span.start)

    def phase(self, name: str) -> None:
        self.end()
        self._reporter.phase(name)
        self._current = name, time.monotonic()

    def end(self) -> None:
        """The present phase is over."""
        if self._current is not None:
            name, start = self._current
            self._current = None
            self._add(name, start)

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """A phase that takes its course beside the others, on any thread."""
        self._reporter.phase(name)
        start = time.monotonic()
        try:
            yield
        finally:
            self._add(name, start)

    def progress(self, name: str, done: int, total: int) -> None:
        self._reporter.progress(name, done, total)

    def info(self, key: str, value: Any, reason: str) -> None:
        self._reporter.info(key, value, reason)

    def _add(self, name: str, start: float) -> None:
        with self._lock:
            self._spans.append(Span(name, start, time.monotonic()))


@dataclass(frozen=True)
class StartupFacts:
    """What the metrics tell of start-up and of programs; asked whenever they are scraped."""

    compiled: Callable[[], Mapping[str, int]] = dict  # programs so far, by reason
    cache_hits: Callable[[], int] = int  # compilations spared by the persistent cache
    loaded: Callable[[], int] = int  # programs that came from a bundle
    spans: Callable[[], Sequence[Span]] = tuple
    buckets: Callable[[], Sequence[int]] = tuple  # sizes of body that are ready, in tokens
    late: Callable[[], LateStatus] = LateStatus  # of the programs that were not there at first
    weight_bytes: int = 0  # on each device, when awake
    kv_pool_bytes: int = 0  # likewise


NOT_MEASURED = StartupFacts()
