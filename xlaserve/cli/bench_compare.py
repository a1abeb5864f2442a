"""xlaserve bench compare: two servers, or two ways to start one, under the same load in turns."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from xlaserve.cli.bench_outputs import OUTPUT, check_outputs, needs
from xlaserve.cli.bench_serving import jobs_of, load_options, send, workload_options
from xlaserve.cli.options import user_errors


@click.command(name="compare", short_help="Two servers or settings under the same load, in turns.")
@click.argument("a")
@click.argument("b")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of A and B, one after the other."
)
@load_options
@workload_options
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@user_errors
def command(a: str, b: str, rounds: int, json_file: Path | None, **options: Any) -> None:
    """Put the same load on A and B in turns, A B A B, and tell the ratios with their spread.

    Each is the URL of a running server of whatever make, or a `serve` command in quotes: then that server is started
    for each of its turns and stopped after it, so that the other has the machine to itself.

    The options of the load are those of `xlaserve bench serving`.

    \b
    Examples:
      xlaserve bench compare http://127.0.0.1:8000 http://127.0.0.1:9000 --max-concurrency 8 --num-prompts 50
      xlaserve bench compare "serve" "serve --set scheduler.async_scheduling=false" --max-concurrency 8 --num-prompts 50
      xlaserve bench compare "serve --model demo" "serve --model demo --set model.dtype=float32" --ignore-eos

    """
    check_outputs(json_file)
    needs("aiohttp")
    jobs = jobs_of(options)
    from xlaserve.bench.comparison import compare
    from xlaserve.bench.report import make_report

    measured = []
    for number in range(rounds):
        reports = []
        for name, side in (("A", a), ("B", b)):
            click.echo(f"round {number + 1} of {rounds}: {name}", err=True)
            with _running(side) as url:
                _, answers = send(url, options, jobs)
            report = make_report(answers, percentiles=[99])
            if report["failed"]:
                raise click.ClickException(f"{name}: {report['failed']} requests have failed: {report['errors'][0]}")
            reports.append(report)
        measured.append(tuple(reports))
    found = compare(measured)
    _print(found, rounds)
    if json_file:
        whole = {"a": a, "b": b, "rounds": measured, "compared": found}
        json_file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _running(side: str) -> Iterator[str]:
    """The URL of a server; one that is started here is stopped in the end. Raises ServerFailed."""
    from xlaserve.bench.server_process import serving

    match shlex.split(side):
        case [url] if url.startswith(("http://", "https://")):
            yield url
        case ["serve", *arguments]:
            with serving(arguments) as url:
                yield url
        case _:
            raise click.UsageError(f"{side!r}: must be a URL, or `serve` with its options in quotes")


def _print(found: dict[str, dict[str, float]], rounds: int) -> None:
    from rich.console import Console

    from xlaserve.cli.bench_table import new_table

    table = new_table(f"medians of {rounds}", "A", "B", "B / A", "from", "to")
    for name, figures in found.items():
        ratios = (f"{figures[column]:.3f}" for column in ("ratio", "ratio_min", "ratio_max"))
        table.add_row(name, f"{figures['a']:.1f}", f"{figures['b']:.1f}", *ratios)
    Console(highlight=False, markup=False).print(table)
