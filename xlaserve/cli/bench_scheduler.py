"""xlaserve bench scheduler: the scheduler and its memory on a simulated device."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlaserve.cli.bench_outputs import OUTPUT, check_outputs
from xlaserve.cli.options import user_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xlaserve.engine.simulation.costs import CostModel
    from xlaserve.engine.simulation.trace import TraceRequest

_INPUT = click.Path(path_type=Path)
# Lengths as (mean, sigma), log-normal. sharegpt: the proportions and the spread of ShareGPT, 300 tokens in the mean.
WORKLOADS: dict[str, dict[str, Any]] = {
    "sharegpt": {"prompt_tokens": 100, "prompt_sigma": 1.0, "output_tokens": 200, "output_sigma": 0.8},
    "shared-prefix": {
        "prompt_tokens": 32,
        "prompt_sigma": 0,
        "output_tokens": 64,
        "output_sigma": 0,
        "prefix_tokens": 1024,
    },
}


@click.command(name="scheduler", short_help="The scheduler and its memory on a simulated device.")
@click.option("--config", "config_file", type=_INPUT, help="A YAML configuration file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting.")
@click.option("--trace", type=_INPUT, help="Requests from a JSONL file: see below.")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), help="Requests at random.  [default: sharegpt]")
@click.option("--requests", type=click.IntRange(min=1), help="How many.  [default: 1000]")
@click.option("--rate", type=float, help="Arrivals per second, a Poisson process.  [default: all at once]")
@click.option("--prompt-tokens", type=float, help="Mean length, without the shared prefix.")
@click.option("--prompt-sigma", type=float, help="Standard deviation of its logarithm; 0: all alike.")
@click.option("--output-tokens", type=float, help="Mean length.")
@click.option("--output-sigma", type=float, help="Standard deviation of its logarithm; 0: all alike.")
@click.option("--prefix-tokens", type=click.IntRange(min=0), help="Length of a shared prefix, before the prompt.")
@click.option("--prefixes", type=click.IntRange(min=1), help="How many different prefixes.  [default: 1]")
@click.option("--tenant", "tenants", multiple=True, metavar="NAME=LOAD", help="A tenant and its part of the requests.")
@click.option("--seed", type=int, help="Other requests at random.  [default: 0]")
@click.option("--step-ms", type=float, help="Cost of a step.  [default: 6]")
@click.option("--token-us", type=float, help="Cost of a token computed, padding included.  [default: 27]")
@click.option("--context-ns", type=float, help="Cost of a token of context read.  [default: 49]")
@click.option("--costs", type=_INPUT, help="These three fitted to measured steps in a JSON file.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--plot", "plot_file", type=OUTPUT, help="Write a picture (PNG) there; needs matplotlib.")
@user_errors
def command(
    config_file: Path | None,
    settings: Sequence[str],
    trace: Path | None,
    step_ms: float | None,
    token_us: float | None,
    context_ns: float | None,
    costs: Path | None,
    json_file: Path | None,
    plot_file: Path | None,
    **workload: Any,
) -> None:
    """Run the scheduler and its memory on a simulated device, and tell how well they do.

    Engine, scheduler and block manager are those that serve; only the device is replaced, by a clock and by what a step
    costs: STEP-MS + TOKEN-US for each token + CONTEXT-NS for each token of context read. The defaults stand for
    Llama-3.1-8B in bfloat16 on an H100, worked out from data sheets.

    The configuration is a deployment's, with cache.*, scheduler.* and model.max_model_len in use. Left open, they are
    4096 tokens at most, a pool for ten such requests, 256 rows and 2048 tokens a step.

    A trace has one JSON object a line: prompt_tokens and output_tokens, and if need be arrival (seconds, from 0),
    tenant, prefix and prefix_tokens (prompts whose prefix has the same name begin with the same tokens). For instance:

    {"arrival": 0.5, "prompt_tokens": 1056, "output_tokens": 64, "prefix": "a", "prefix_tokens": 1024}

    The file for --costs: [{"padded_tokens": 256, "context_tokens": 9000, "ms": 13.2}, ...]

    \b
    Examples:
      xlaserve bench scheduler --plot run.png
      xlaserve bench scheduler --rate 20 --requests 5000 --json run.json
      xlaserve bench scheduler --workload shared-prefix --prefixes 4 --rate 50
      xlaserve bench scheduler --tenant small=1 --tenant large=20
      xlaserve bench scheduler --config configs/llama-3.1-8b.yaml --trace requests.jsonl
      xlaserve bench scheduler --set cache.block_size=32 --set cache.num_blocks=5000

    """
    from xlaserve.cli.bench_table import print_report
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.config import load_config
    from xlaserve.engine.simulation.report import make_report
    from xlaserve.engine.simulation.simulator import Simulator, Sizes

    check_outputs(json_file, plot_file)
    sizes = Sizes.of(load_config(config_file, settings))
    simulator = Simulator(sizes, _costs(costs, step_ms=step_ms, token_us=token_us, context_ns=context_ns))
    requests, total = _requests(trace, workload, sizes.max_model_len)
    started = time.monotonic()
    with ConsoleReporter() as reporter:
        simulator.run(requests, lambda finished: reporter.progress("requests", finished, total))
    report = make_report(simulator)
    print_report(report)
    click.echo(f"{simulator.clock.now:.1f} s simulated in {time.monotonic() - started:.1f} s", err=True)
    if json_file:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if plot_file:
        from xlaserve.engine.simulation.plot import save_plot

        save_plot(simulator.measures, f"{total} requests, a pool of {sizes.num_blocks - 1} blocks", plot_file)


def _costs(file: Path | None, **given: float | None) -> "CostModel":
    from xlaserve.engine.simulation.costs import CostModel, fit_costs

    named = {name: value for name, value in given.items() if value is not None}
    if file is None:
        return CostModel(**named)
    if named:
        raise click.UsageError(f"--costs and --{next(iter(named)).replace('_', '-')}: choose one.")
    return fit_costs(file)


def _requests(trace: Path | None, options: dict[str, Any], max_tokens: int) -> "tuple[Iterable[TraceRequest], int]":
    """The requests by arrival, and their number."""
    from xlaserve.engine.simulation.trace import Lengths, Workload, read_trace

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if trace is not None:
        if given:
            raise click.UsageError(f"--trace and --{next(iter(given)).replace('_', '-')}: choose one.")
        requests = read_trace(trace)
        return requests, len(requests)
    shape = WORKLOADS[given.get("workload", "sharegpt")] | given
    workload = Workload(
        num_requests=shape.get("requests", 1000),
        prompt=Lengths(shape["prompt_tokens"], shape["prompt_sigma"]),
        output=Lengths(shape["output_tokens"], shape["output_sigma"]),
        max_tokens=max_tokens,
        rate=shape.get("rate"),
        prefix_tokens=shape.get("prefix_tokens", 0),
        num_prefixes=shape.get("prefixes", 1),
        tenants=dict(map(_tenant, shape.get("tenants", ["=1"]))),
        seed=shape.get("seed", 0),
    )
    return workload.requests(), workload.num_requests


def _tenant(text: str) -> tuple[str, float]:
    name, equals, load = text.rpartition("=")
    try:
        return name, float(load if equals else "")
    except ValueError:
        raise click.UsageError(f"--tenant {text}: write it as NAME=LOAD, for instance small=1") from None
