"""An engine in this process, for the commands that need no server."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from xlaserve.cli.console import ConsoleReporter
from xlaserve.cli.options import ENGINE_ERROR, cache_dir

if TYPE_CHECKING:
    from xlaserve.config import Config
    from xlaserve.engine.service import GenerationService

# Objects made before the collector looks at the young ones. A step makes some for each running request, which die when
# it has come back: by the default of 700 the collector goes through all requests every few steps, 50 ms with 10,000.
GC_THRESHOLD = 10_000


def give_back_memory() -> None:
    """Of the start: what jax has traced, where all is compiled, and what the C library keeps of what has been freed.

    glibc returns to the system only the end of a heap, however much is free before it.
    """
    import jax

    jax.clear_caches()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def calm_garbage_collector() -> None:
    """For a process that serves and has started: what is there now stays, and is looked at no more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


@contextmanager
def started(config: "Config") -> "Iterator[GenerationService]":
    """Builds the engine, showing its progress on stderr; shuts it down in the end."""
    from xlaserve.engine.build import build_service

    with ConsoleReporter() as reporter:
        service = build_service(config, cache_dir=cache_dir(), reporter=reporter)
    try:
        yield service
    finally:
        shut_down(service)


def shut_down(service: "GenerationService") -> None:
    """Aborts what still runs. Python cannot exit around a step that hangs: then the process ends here."""
    if not service.shutdown(timeout=0):
        sys.stdout.flush()
        click.echo("Error: the engine hangs in a step.", err=True)
        os._exit(ENGINE_ERROR)
