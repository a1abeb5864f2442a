"""xlaserve plan: what a deployment would take and give, on hardware that need not be here."""

import json
import os
from pathlib import Path
from typing import Any

import click

from xlaserve.cli.options import (
    cache_dir,
    config_options,
    gpu_share,
    look_for_no_device,
    resolve_config,
    user_errors,
    with_config,
)


@click.command(name="plan", short_help="Tell what a deployment would take and give on a target.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@config_options
@click.option("--target", "targets", multiple=True, metavar="T", help="As of `xlaserve build`: tpu-v5e-8, h100x4, ...")
@click.option("--compare", metavar="T1,T2,...", help="Several targets side by side.")
@click.option("--estimate", is_flag=True, help="Ask no compiler: a second instead of minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@user_errors
def command(
    config: Path | None, targets: tuple[str, ...], compare: str | None, estimate: bool, as_json: bool, **options: Any
) -> None:
    """Tell what a deployment would take and give on a target: memory, requests at once, programs, least times.

    CONFIG is a YAML file, or a model's config.json, which is enough: no weights are read. With the target's compiler
    installed, the largest programs are compiled to see what they need; without it that is estimated, and marked.

    \b
    Examples:
      xlaserve plan Llama-3.1-8B/config.json --target tpu-v5e-8
      xlaserve plan configs/llama-3.1-8b.yaml --compare h100,h200,tpu-v5e-8 --estimate
    """
    names = [*targets, *filter(None, (compare or "").split(","))]
    if not names:
        raise click.UsageError("Name a --target, or several to --compare.")
    look_for_no_device()
    resolved = resolve_config(**with_config(config, options))
    from xlaserve.cli import plan_table
    from xlaserve.engine.planning.plan import make_plan
    from xlaserve.engine.planning.report import as_json as report
    from xlaserve.engine.reporter import SilentReporter
    from xlaserve.models.config import parse_config
    from xlaserve.models.sources import read_config
    from xlaserve.targets import find_target

    found = [find_target(name) for name in names]
    model = parse_config(*read_config(resolved.model, cache_dir=cache_dir(), announce=_tell))
    plans = []
    for target in found:
        compiled = target.has_compiler() and not estimate
        if compiled:
            _tell(f"compiling the largest programs for {target.name}; --estimate does without")
        plans.append(
            make_plan(
                resolved, model, target, gpu_share=gpu_share(), num_cores=os.cpu_count() or 1, compiled=compiled,
                reporter=SilentReporter(),
            )
        )  # fmt: skip
    if as_json:
        shown = [report(plan) for plan in plans]
        click.echo(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2))
    elif len(plans) == 1:
        plan_table.print_plan(plans[0])
    else:
        plan_table.print_comparison(plans)


def _tell(text: str) -> None:
    click.echo(text, err=True)
