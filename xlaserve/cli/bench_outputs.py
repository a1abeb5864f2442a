"""Where a benchmark's figures and pictures go, and the packages it needs: checked before it runs."""

import importlib.util
from pathlib import Path

import click

OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


def check_outputs(json_file: Path | None, plot_file: Path | None = None, json_option: str = "--json") -> None:
    """Nothing is lost to a wrong name or a missing package after the run."""
    for option, path in ((json_option, json_file), ("--plot", plot_file)):
        if path and not path.parent.is_dir():
            raise click.UsageError(f"{option} {path}: there is no folder {path.parent}")
    if plot_file:
        needs("matplotlib")


def needs(package: str) -> None:
    """Of the extra `bench`."""
    if importlib.util.find_spec(package) is None:
        raise click.UsageError(f"this needs {package}: pip install 'xlaserve[bench]'")
