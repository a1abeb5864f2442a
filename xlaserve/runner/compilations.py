"""Counts compilations by reason, and hits of the persistent cache apart from them."""

import contextlib
import threading
from collections import Counter
from pathlib import Path

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

_COMPILED = "/jax/core/compile/backend_compile_duration"  # fires for a cache hit too
_HIT = "/jax/compilation_cache/cache_hits"


class CompilationLog:
    """Process-wide, since jax's events name no owner. `unexpected` is the reason of whatever no `expect` covers."""

    def __init__(self):
        self._lock = threading.Lock()
        self._compiled: Counter[str] = Counter()
        self._hits = 0
        self._loaded = 0
        # Of each thread: `hit`, the compile event to come is no compilation; `reason`, what it is counted under.
        self._thread = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    @contextlib.contextmanager
    def expect(self, reason: str):
        """Compilations within the block, by this thread, are counted under `reason`."""
        previous = self._of_thread()
        self._thread.reason = reason
        try:
            yield
        finally:
            self._thread.reason = previous

    def _of_thread(self) -> str:
        return getattr(self._thread, "reason", "unexpected")

    def compiled(self) -> dict[str, int]:
        """Programs compiled so far by reason; those found in the persistent cache are not among them."""
        with self._lock:
            return dict(self._compiled)

    def cache_hits(self) -> int:
        with self._lock:
            return self._hits

    def loaded(self) -> int:
        """Programs that came from a bundle."""
        with self._lock:
            return self._loaded

    def count_load(self) -> None:
        with self._lock:
            self._loaded += 1

    def _on_event(self, event: str, **kwargs: str | int):
        if event == _HIT:
            self._thread.hit = True

    def _on_duration(self, event: str, duration_secs: float, **kwargs: str | int):
        if event != _COMPILED:
            return
        hit, self._thread.hit = getattr(self._thread, "hit", False), False
        with self._lock:
            if hit:
                self._hits += 1
            else:
                self._compiled[self._of_thread()] += 1


def use_persistent_cache(folder: Path) -> None:
    """Keeps the programs this process compiles from now on in `folder`, also when it has used another one before.

    The thresholds are zero on purpose: many small programs make a start slow too. Raises OSError when the folder cannot
    be made; then nothing is kept. One that cannot be read or written later only costs time: jax warns of it.
    """
    use_no_persistent_cache()
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # XLA's own caches for GPUs would be in a folder of this one, whose path would be part of every program's key: a
    # cache that has been moved, or is mounted elsewhere, would be of no use.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    compilation_cache.reset_cache()  # or jax stays with the folder of its first compilation


def use_no_persistent_cache() -> None:
    """For programs that are to be written down: of those that XLA's CPU backend has read from a cache it knows only a
    part, and what it writes of them cannot be run."""
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


LOG = CompilationLog()
