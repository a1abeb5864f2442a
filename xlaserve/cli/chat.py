"""xlaserve chat: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING, Any

import click

from xlaserve.cli.options import bundle_options, config_options, resolve_config, user_errors
from xlaserve.cli.sampling import sampling_options, sampling_params, take_sampling_options

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService
    from xlaserve.sampling_params import SamplingParams
    from xlaserve.server.messages import Message

HELP = "Ctrl-C interrupts an answer, /clear starts a new conversation, Ctrl-D leaves."


@click.command(name="chat", short_help="Chat with a model in the terminal.")
@config_options
@bundle_options
@click.option("--system", help="The system message.")
@sampling_options(None)
@user_errors
def command(system: str | None, **options: Any) -> None:
    """Chat with a model in the terminal.

    Ctrl-C interrupts an answer, /clear starts a new conversation, Ctrl-D leaves.

    \b
    Examples:
      xlaserve chat
      xlaserve chat --model Qwen/Qwen3-0.6B --temperature 0.6 --top-p 0.95
      xlaserve chat --system "Answer in one sentence."
    """
    from xlaserve.cli.engine import started

    sampling = take_sampling_options(options)
    with started(resolve_config(**options)) as service:
        params = sampling_params(service.info.sampling_defaults, **sampling)
        click.echo(f"{service.info.name}. {HELP}", err=True)
        Conversation(service, params, system).run()


class Conversation:
    """The messages so far; `run` reads lines from stdin until its end."""

    def __init__(self, service: "GenerationService", params: "SamplingParams", system: str | None):
        self._service = service
        self._params = params
        self._system = system
        self._messages: list[Message] = []
        self._clear()

    def run(self) -> None:
        if sys.stdin.isatty():
            import readline  # noqa: F401  editing and history for input()
        while True:
            try:
                line = input("> ") if sys.stdin.isatty() else input()
            except EOFError:
                break
            except KeyboardInterrupt:
                click.echo(f"\n{HELP}", err=True)
                continue
            if line.strip() == "/clear":
                self._clear()
            elif line.strip():
                self._answer(line)

    def _clear(self) -> None:
        from xlaserve.server.messages import Message

        self._messages = [Message(role="system", content=self._system)] if self._system else []

    def _answer(self, line: str) -> None:
        """Asks and prints; what was printed joins the conversation, also when it was interrupted."""
        from xlaserve.engine.generations import Generations
        from xlaserve.errors import InvalidRequest
        from xlaserve.server.messages import Message
        from xlaserve.server.tokens import chat_ids

        asked = [*self._messages, Message(role="user", content=line)]
        try:
            generations = Generations(self._service, [chat_ids(self._service.tokenizer, asked)], self._params, "chat")
        except InvalidRequest as error:  # e.g. the conversation has outgrown the context
            click.echo(f"{error} (/clear starts a new conversation)", err=True)
            return
        text = ""
        try:
            for _, delta in generations:
                text += delta.text
                sys.stdout.write(delta.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo(" [interrupted]", err=True, nl=False)
        finally:
            generations.abort()
        click.echo()
        if text:
            self._messages = [*asked, Message(role="assistant", content=text)]
