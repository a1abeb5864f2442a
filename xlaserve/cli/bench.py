"""xlaserve bench: measurements."""

import click

from xlaserve.cli.bench_scheduler import command as scheduler
from xlaserve.cli.bench_startup import command as startup


@click.group(name="bench", short_help="Measure: the scheduler on a simulated device, and start-up.")
def command() -> None:
    """Measure.

    \b
    Examples:
      xlaserve bench scheduler
      xlaserve bench startup configs/demo.yaml
    """


command.add_command(scheduler)
command.add_command(startup)
