"""The `xlaserve` command. Its subcommands are imported when called, so that --help answers at once."""

import importlib

import click

import xlaserve

_COMMANDS = {
    "serve": "Serve a model over HTTP, compatible with OpenAI's API.",
    "generate": "Generate text from prompts, then exit.",
    "chat": "Chat with a model in the terminal.",
    "fetch": "Download a model ahead of time.",
    "build": "Compile a deployment's programs ahead of time.",
    "admin": "Give orders to a running server.",
    "plan": "Tell what a deployment would take and give on a target.",
    "bench": "Measure: servers, start-up, the engine, the scheduler on a simulated device.",
}


class _LazyGroup(click.Group):
    """Knows its subcommands by name and summary; imports `xlaserve.cli.NAME` only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(f"xlaserve.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(xlaserve.__version__, prog_name="xlaserve")
def main() -> None:
    """A portable LLM serving engine on JAX/XLA: TPU, GPU and CPU.

    \b
    Examples:
      xlaserve generate --prompt "The capital of France is"
      xlaserve chat
      xlaserve serve
      xlaserve serve configs/llama-3.1-8b.yaml --port 9000

    Environment: XLASERVE_CACHE is the folder for models and compiled programs (default: ~/.cache/xlaserve).
    """
