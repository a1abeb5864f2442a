"""xlaserve bench: measurements."""

import click

from xlaserve.cli.bench_compare import command as compare
from xlaserve.cli.bench_offline import latency, throughput
from xlaserve.cli.bench_scheduler import command as scheduler
from xlaserve.cli.bench_serving import command as serving
from xlaserve.cli.bench_startup import command as startup
from xlaserve.cli.bench_trace import command as trace


@click.group(name="bench", short_help="Measure: servers, start-up, the engine, the scheduler on a simulated device.")
def command() -> None:
    """Measure.

    \b
    Examples:
      xlaserve bench serving --num-prompts 100 --max-concurrency 16
      xlaserve bench throughput --num-prompts 100 --input-len 128 --output-len 64
      xlaserve bench startup configs/demo.yaml
      xlaserve bench trace --out trace.json --plot trace.png
      xlaserve bench scheduler
      xlaserve bench serving --help
    """


for each in (serving, throughput, latency, trace, compare, startup, scheduler):
    command.add_command(each)
