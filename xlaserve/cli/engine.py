"""An engine in this process, for the commands that need no server."""

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
