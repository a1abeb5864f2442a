"""Where the benchmarks write to."""

from pathlib import Path

import click

OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


def check_outputs(json_file: Path | None, plot_file: Path | None) -> None:
    """Before the run: nothing is lost to a wrong name after it."""
    for option, path in (("--json", json_file), ("--plot", plot_file)):
        if path and not path.parent.is_dir():
            raise click.UsageError(f"{option} {path}: there is no folder {path.parent}")
    if plot_file:
        try:
            import matplotlib  # noqa: F401
        except ModuleNotFoundError as error:
            raise click.UsageError("--plot needs matplotlib: pip install 'xlaserve[bench]'") from error
