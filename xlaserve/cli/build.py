"""xlaserve build: the programs of a deployment as a folder."""

from pathlib import Path
from typing import Any

import click

from xlaserve.cli.options import cache_dir, config_options, resolve_config, user_errors


@click.command(name="build", short_help="Compile a deployment's programs ahead of time.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@config_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to make; it must not be there.")
@user_errors
def command(config: Path | None, out: Path, **options: Any) -> None:
    """Compile all programs of a deployment on a device of this machine, and write them to a folder: a bundle.

    `xlaserve serve CONFIG --bundle DIR` loads it instead of compiling, on machines with the same kind of device and the
    same versions of jax. Weights are not in it: any of the same architecture will do.

    \b
    Examples:
      xlaserve build configs/demo.yaml --out demo.bundle
      xlaserve serve configs/demo.yaml --bundle demo.bundle
    """
    if config is not None and options["config_file"] is not None:
        raise click.UsageError("The configuration is given twice: as CONFIG and as --config.")
    options["config_file"] = config or options["config_file"]
    resolved = resolve_config(**options)
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.engine.build import build_bundle

    with ConsoleReporter() as reporter:
        num_programs, num_bytes = build_bundle(resolved, out, cache_dir=cache_dir(), reporter=reporter)
    click.echo(f"{out}: {num_programs} programs, {num_bytes / 1e6:.1f} MB", err=True)
