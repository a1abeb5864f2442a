"""xlaserve bench throughput and latency: the engine in this process."""

import json
from pathlib import Path
from typing import Any

import click

from xlaserve.cli.bench_outputs import OUTPUT, check_outputs
from xlaserve.cli.bench_serving import jobs_of, workload_options
from xlaserve.cli.options import bundle_options, config_options, resolve_config, user_errors

WORKLOAD = (
    "dataset_",
    "num_prompts",
    "seed",
    "random_",
    "prefix_repetition_",
    "sharegpt_",
    "custom_",
)  # options begin so
UNLIMITED = ("server.max_waiting=1000000000", "server.max_waiting_tokens=null")  # for all requests come at once
_COUNT = click.IntRange(min=1)
_json_option = click.option("--json", "--output-json", "json_file", type=OUTPUT, help="Write the figures there.")


@click.command(name="throughput", short_help="All requests at once, without a server.")
@config_options
@bundle_options
@workload_options
@_json_option
@user_errors
def throughput(json_file: Path | None, **options: Any) -> None:
    """Send all requests to an engine in this process at once, and tell how long it takes to answer them.

    Options have the names of `vllm bench throughput`. Every answer has its whole length. Lengths that are drawn are in
    tokens; the arrivals of a trace do not count.

    \b
    Examples:
      xlaserve bench throughput --num-prompts 100 --input-len 128 --output-len 64
      xlaserve bench throughput --config configs/demo.yaml --dataset-name sharegpt --num-prompts 200
    """
    check_outputs(json_file)
    from xlaserve.bench.offline import measure_throughput, token_prompts
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.cli.engine import started

    workload = {name: options.pop(name) for name in list(options) if name.startswith(WORKLOAD)}
    jobs = jobs_of(workload)
    options["settings"] = (*options["settings"], *UNLIMITED)
    with started(resolve_config(**options)) as service, ConsoleReporter() as reporter:
        prompts = token_prompts(service.tokenizer, jobs, exact=workload["dataset_path"] is None)
        report = measure_throughput(
            service,
            prompts,
            [job.output_tokens for job in jobs],
            lambda done: reporter.progress("requests", done, len(jobs)),
        )
    _show(report, json_file)


@click.command(name="latency", short_help="One batch, over and over, without a server.")
@config_options
@bundle_options
@click.option("--input-len", type=_COUNT, default=32, show_default=True, help="Tokens of each prompt.")
@click.option("--output-len", type=_COUNT, default=128, show_default=True, help="Tokens of each answer.")
@click.option("--batch-size", type=_COUNT, default=8, show_default=True)
@click.option("--num-iters-warmup", type=click.IntRange(min=0), default=10, show_default=True)
@click.option("--num-iters", type=_COUNT, default=30, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the prompts.")
@_json_option
@user_errors
def latency(json_file: Path | None, **options: Any) -> None:
    """Tell how long an engine in this process takes for one batch, by the names of `vllm bench latency`.

    The prefix cache is off, for the prompts come again.

    \b
    Examples:
      xlaserve bench latency
      xlaserve bench latency --batch-size 1 --input-len 128 --output-len 64 --num-iters 5
    """
    check_outputs(json_file)
    from xlaserve.bench.offline import measure_latency
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.cli.engine import started

    names = ("input_len", "output_len", "batch_size", "seed")
    asked = {name: options.pop(name) for name in names}
    asked |= {"warmups": options.pop("num_iters_warmup"), "iterations": options.pop("num_iters")}
    total = asked["warmups"] + asked["iterations"]
    options["settings"] = (*options["settings"], *UNLIMITED, "cache.prefix_caching=false")
    with started(resolve_config(**options)) as service, ConsoleReporter() as reporter:
        report = measure_latency(service, **asked, on_done=lambda done: reporter.progress("batches", done, total))
    _show(report, json_file)


def _show(report: dict[str, Any], json_file: Path | None) -> None:
    from rich.console import Console

    from xlaserve.cli.bench_table import new_table

    table = new_table("figure", "value")
    for name, value in report.items():
        if isinstance(value, int | float):
            table.add_row(name, str(value) if isinstance(value, int) else f"{value:.3f}")
    for percent, value in report.get("percentiles", {}).items():
        table.add_row(f"p{percent}", f"{value:.3f}")
    Console(highlight=False, markup=False).print(table)
    if json_file:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
