"""xlaserve generate: prompts in, text out."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from xlaserve.cli.options import bundle_options, config_options, resolve_config, user_errors
from xlaserve.cli.sampling import sampling_options, sampling_params, take_sampling_options

if TYPE_CHECKING:
    from xlaserve.engine.generations import Generations
    from xlaserve.engine.tokenizer import Tokenizer

MAX_TOKENS = 256


@click.command(name="generate", short_help="Generate text from prompts, then exit.")
@config_options
@bundle_options
@click.option("--prompt", "prompts", multiple=True, required=True, help="May be given several times: one batch.")
@click.option("--chat", is_flag=True, help="The prompt is a user's message; the chat template is applied.")
@sampling_options(MAX_TOKENS)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per prompt, one per line.")
@click.option("--stream", is_flag=True, help="Print text as it is generated.")
@user_errors
def command(prompts: Sequence[str], chat: bool, as_json: bool, stream: bool, **options: Any) -> None:
    """Generate text from one or more prompts, then exit.

    Text goes to stdout, everything else to stderr. Several prompts are computed as one batch and printed in order.

    \b
    Examples:
      xlaserve generate --prompt "The capital of France is" --max-tokens 20 --temperature 0
      xlaserve generate --chat --stream --prompt "Why is the sky blue?"
      xlaserve generate --model Qwen/Qwen3-0.6B --prompt "1, 2," --prompt "a, b," --json
    """
    if as_json and stream:
        raise click.UsageError("--json prints whole objects and --stream prints pieces: choose one.")
    from xlaserve.cli.engine import started
    from xlaserve.engine.generations import Generations, collect

    sampling = take_sampling_options(options)
    with started(resolve_config(**options)) as service:
        params = sampling_params(service.info.sampling_defaults, **sampling)
        prompt_ids = [_encode(service.tokenizer, prompt, chat) for prompt in prompts]
        generations = Generations(service, prompt_ids, params, "generate")
        try:
            if stream:
                _print_stream(generations, len(prompts))
                return
            outputs = collect(generations)
        finally:
            generations.abort()
        for index, output in enumerate(outputs):
            if not as_json:
                click.echo(output.text)
                continue
            result = {
                "prompt": prompts[index],
                "prompt_ids": output.prompt_ids,
                "output_ids": output.token_ids,
                "text": output.text,
                "finish_reason": output.finish_reason,
                "timings": generations.by_index[index].timings,
            }
            click.echo(json.dumps(result, ensure_ascii=False))


def _encode(tokenizer: "Tokenizer", prompt: str, chat: bool) -> list[int]:
    from xlaserve.server.messages import Message
    from xlaserve.server.tokens import chat_ids, prompt_ids

    if chat:
        return chat_ids(tokenizer, [Message(role="user", content=prompt)])
    return prompt_ids(tokenizer, prompt)


def _print_stream(generations: "Generations", count: int) -> None:
    """Prints the first unfinished text as it grows; those behind it wait until it is finished."""
    waiting = [""] * count
    finished = [False] * count
    current = 0
    for index, delta in generations:
        waiting[index] += delta.text
        finished[index] = delta.finish_reason is not None
        while current < count:
            sys.stdout.write(waiting[current])
            waiting[current] = ""
            if not finished[current]:
                break
            sys.stdout.write("\n")
            current += 1
        sys.stdout.flush()
