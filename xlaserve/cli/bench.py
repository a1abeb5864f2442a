"""xlaserve bench: measurements."""

import click

from xlaserve.cli.bench_scheduler import command as scheduler


@click.group(name="bench", short_help="Measure: the scheduler on a simulated device.")
def command() -> None:
    """Measure.

    \b
    Examples:
      xlaserve bench scheduler
      xlaserve bench scheduler --help
    """


command.add_command(scheduler)
