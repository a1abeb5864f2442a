"""xlaserve bench startup: from the start of a process to its first token."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from xlaserve.cli.bench_outputs import OUTPUT, check_outputs
from xlaserve.cli.options import user_errors


@click.command(name="startup", short_help="From the start of a process to its first token.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Processes of each kind.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--plot", "plot_file", type=OUTPUT, help="Write a picture (PNG) there; needs matplotlib.")
@user_errors
def command(
    config: Path | None, settings: Sequence[str], runs: int, json_file: Path | None, plot_file: Path | None
) -> None:
    """Start a deployment again and again, each time in a process of its own, until it has given a token.

    Three kinds in turns: with an empty compilation cache, with a filled one, and with a bundle, which is built first.
    Told are the medians of when each phase starts and ends. Caches and bundle are made in a temporary folder; the model
    is downloaded before, if it must be.

    \b
    Examples:
      xlaserve bench startup configs/demo.yaml
      xlaserve bench startup configs/demo.yaml --runs 5 --json startup.json --plot startup.png
    """
    from xlaserve.cli.options import cache_dir
    from xlaserve.cli.startup_runs import measure, medians
    from xlaserve.config import load_config
    from xlaserve.models import sources

    check_outputs(json_file, plot_file)
    source = load_config(config, settings).model
    sources.resolve(source, cache_dir=cache_dir(), seed=0, announce=_announce)
    with tempfile.TemporaryDirectory(prefix="xlaserve-startup-") as folder:
        starts = measure(config, settings, Path(folder), runs, _announce)
    found = {kind: medians(each) for kind, each in starts.items()}
    _print_table(found)
    if json_file:
        every = {kind: [start.total for start in each] for kind, each in starts.items()}
        report = {"model": source.source, "runs": runs, "kinds": found, "totals": every}
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if plot_file:
        from xlaserve.cli.startup_plot import save_waterfall

        save_waterfall(found, f"Start-up of {source.source}, medians of {runs}", plot_file)


def _announce(text: str) -> None:
    click.echo(text, err=True)


def _print_table(found: dict[str, dict[str, Any]]) -> None:
    """Seconds that each phase took. Phases may overlap, so that they do not add up to the total."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("seconds", no_wrap=True)
    for kind in found:
        table.add_column(kind, justify="right")
    for name in dict.fromkeys(name for each in found.values() for name in each["phases"]):
        spans = [each["phases"].get(name) for each in found.values()]
        table.add_row(name, *("-" if span is None else f"{span[1] - span[0]:.2f}" for span in spans))
    table.add_row("to the first token", *(f"{each['total']:.2f}" for each in found.values()), style="bold")
    table.add_row("of the first kind's", *(f"{each['total'] / found['cold']['total']:.0%}" for each in found.values()))
    for name in ("compiled", "cache_hits", "loaded"):
        table.add_row(f"programs {name.replace('_', ' ')}", *(f"{each[name]:g}" for each in found.values()))
    Console(highlight=False, markup=False).print(table)
