"""The sampling options of `generate` and `chat`."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xlaserve.sampling_params import SamplingParams


def sampling_options(default_max_tokens: int | None) -> Callable[[Callable], Callable]:
    """Adds --max-tokens, --temperature, --top-p, --top-k, --seed and --stop. None: what is left of the context."""
    told = "what is left of the context" if default_max_tokens is None else str(default_max_tokens)
    options = [
        click.option(
            "--max-tokens",
            type=click.IntRange(min=1),
            default=default_max_tokens,
            help=f"Tokens to generate at most.  [default: {told}]",
        ),
        click.option("--temperature", type=float, help="0: greedy.  [default: the checkpoint's, else 1]"),
        click.option(
            "--top-p", type=float, help="Keep the likeliest tokens up to this mass.  [default: the checkpoint's]"
        ),
        click.option("--top-k", type=int, help="Keep this many tokens; 0: all.  [default: the checkpoint's]"),
        click.option("--seed", type=int, help="Makes sampling repeatable."),
        click.option("--stop", multiple=True, help="End before this text; up to four times."),
    ]

    def decorate(function: Callable) -> Callable:
        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)

    return decorate


def take_sampling_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes those that `sampling_options` has added out of `options`, for `sampling_params`.

    Raises InvalidRequest for a wrong one, before any model is loaded.
    """
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
    taken = {name: options.pop(name) for name in names}
    sampling_params({}, **taken)
    return taken


def sampling_params(
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    stop: tuple[str, ...],
) -> "SamplingParams":
    """What was asked, else the checkpoint's `defaults`. Raises InvalidRequest."""
    from xlaserve.sampling_params import SamplingParams

    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    chosen = defaults | {name: value for name, value in asked.items() if value is not None}
    return SamplingParams(**chosen, max_tokens=max_tokens, seed=seed, stop=stop)
