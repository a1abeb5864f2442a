"""xlaserve fetch: downloads a model."""

import click

from xlaserve.cli.options import cache_dir, user_errors


@click.command(name="fetch", short_help="Download a model ahead of time.")
@click.argument("model")
@click.option("--revision", help="A branch, tag or commit of a hub id.")
@user_errors
def command(model: str, revision: str | None) -> None:
    """Download MODEL (demo, or a hub id) and print its path. What is there already is not downloaded again.

    Serving it later needs no network. The demo model goes to xlaserve's cache, others to the hub's own.

    \b
    Examples:
      xlaserve fetch demo
      xlaserve fetch Qwen/Qwen3-0.6B
      HF_TOKEN=... xlaserve fetch meta-llama/Llama-3.1-8B-Instruct
    """
    from xlaserve.cli.console import ConsoleReporter
    from xlaserve.models.sources import fetch

    with ConsoleReporter() as reporter:
        path = fetch(model, revision=revision, cache_dir=cache_dir(), announce=reporter.phase)
    click.echo(path)
