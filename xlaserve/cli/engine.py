"""An engine in this process, for the commands that need no server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xlaserve.cli.console import ConsoleReporter
from xlaserve.cli.options import cache_dir

if TYPE_CHECKING:
    from xlaserve.config import Config
    from xlaserve.engine.service import GenerationService


@contextmanager
def started(config: "Config") -> "Iterator[GenerationService]":
    """Builds the engine, showing its progress on stderr; shuts it down in the end."""
    from xlaserve.engine.build import build_service

    with ConsoleReporter() as reporter:
        service = build_service(config, cache_dir=cache_dir(), reporter=reporter)
    try:
        yield service
    finally:
        service.shutdown(timeout=0)
