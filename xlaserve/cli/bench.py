"""xlaserve bench: measurements."""

import click

from xlaserve.cli.bench_scheduler import command as scheduler
from xlaserve.cli.bench_serving import command as serving


@click.group(name="bench", short_help="Measure: a server under load, the scheduler on a simulated device.")
def command() -> None:
    """Measure.

    \b
    Examples:
      xlaserve bench serving --num-prompts 100 --max-concurrency 16
      xlaserve bench scheduler
      xlaserve bench serving --help
    """


command.add_command(scheduler)
command.add_command(serving)
