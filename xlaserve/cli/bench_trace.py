"""xlaserve bench trace: whether the device waits for the host between two steps."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlaserve.cli.bench_offline import UNLIMITED, WORKLOAD
from xlaserve.cli.bench_outputs import OUTPUT, check_outputs, needs
from xlaserve.cli.bench_serving import jobs_of, workload_options
from xlaserve.cli.options import bundle_options, config_options, resolve_config, user_errors, with_config

if TYPE_CHECKING:
    from xlaserve.bench.step_report import Figures

_NUM_PROMPTS = 16


@click.command(name="trace", short_help="Whether the device waits for the host between two steps.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@config_options
@bundle_options
@functools.partial(workload_options, num_prompts=_NUM_PROMPTS, input_len=128, output_len=64)
@click.option("--over-http", is_flag=True, help="Send it to a server in this process, from another one.")
@click.option("--out", "out_file", type=OUTPUT, help="Write all events there, for Perfetto (JSON).")
@click.option("--plot", "plot_file", type=OUTPUT, help="Write a picture of some steps (PNG) there; needs matplotlib.")
@user_errors
def command(
    config: Path | None, over_http: bool, out_file: Path | None, plot_file: Path | None, **options: Any
) -> None:
    """Send all requests to an engine in this process at once, and tell when its device and its host work.

    CONFIG is a YAML file. Options have the names of `xlaserve bench throughput`. --out can be looked at in
    ui.perfetto.dev or chrome://tracing.

    \b
    Examples:
      xlaserve bench trace --out trace.json --plot trace.png
      xlaserve bench trace configs/demo.yaml --num-prompts 64 --over-http
    """
    check_outputs(out_file, plot_file, "--out")
    if over_http:
        needs("aiohttp")
    from xlaserve.bench.offline import generate, token_prompts
    from xlaserve.bench.step_report import figures
    from xlaserve.bench.trace_files import save_events, save_picture
    from xlaserve.cli.engine import started
    from xlaserve.engine.tracing import Trace, recorded

    options = with_config(config, options)
    workload = {name: options.pop(name) for name in list(options) if name.startswith(WORKLOAD)}
    jobs = jobs_of(workload, num_prompts=_NUM_PROMPTS)
    options["settings"] = (*options["settings"], *UNLIMITED, "compile.serve_early=false")
    trace = Trace()
    with started(resolve_config(**options)) as service:
        prompts = token_prompts(service.tokenizer, jobs, exact=workload["dataset_path"] is None)
        generate(service, prompts[:1], [2])  # what is done once, is done
        if over_http:
            from xlaserve.bench.traced_server import serve_traced

            serve_traced(service, trace, jobs)
        else:
            with recorded(service, trace):
                generate(service, prompts, [job.output_tokens for job in jobs])
    found = figures(trace.spans)
    if found is None:
        raise click.ClickException("there were fewer than two steps: ask for longer answers")
    _print_table(found)
    if out_file:
        save_events(trace.spans, out_file)
    if plot_file:
        save_picture(trace.spans, f"{len(jobs)} requests, some steps", plot_file)


def _print_table(found: "Figures") -> None:
    from rich.console import Console

    from xlaserve.bench.step_report import summary
    from xlaserve.cli.bench_table import new_table

    table = new_table("ms per step", "median", "p95", "mean")
    for name, *values in summary(found):
        table.add_row(name, *(f"{1000 * value:.3f}" for value in values))
    for name, seconds in found.beside.items():
        table.add_row(f"on other threads: {name}", "", "", f"{1000 * seconds:.3f}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(
        f"{len(found.steps)} steps; the device was idle between them for {100 * found.gap_share:.2f}% of the time"
    )
