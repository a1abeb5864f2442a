"""What the commands share: how a configuration is named, where the cache is, and how errors end a command.

The only place that reads environment variables.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from xlaserve.config import Config

# Exit codes. The first is click's own for a wrong option.
USER_ERROR = 2
ENGINE_ERROR = 1


def config_options(function: Callable) -> Callable:
    """--config, --model, --set and others that stand for settings: see `resolve_config`."""
    options = [
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="A YAML configuration file."),
        click.option("--model", help="demo, a folder, a .gguf file or a hub id.  [default: demo]"),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a setting, e.g. cache.block_size=32.",
        ),
        click.option(
            "--generation-config",
            type=click.Choice(["auto", "none"]),
            help="auto: the checkpoint's sampling defaults apply; none: OpenAI's do.",
        ),
        click.option(
            "--logprobs-mode",
            type=click.Choice(["raw", "processed"]),
            help="raw: the model's own; processed: after penalties, masks, temperature and cuts.  [default: raw]",
        ),
        click.option(
            "--chat-template",
            type=click.Path(path_type=Path),
            help="A Jinja file in place of the checkpoint's template.",
        ),
        click.option(
            "--kv-cache-memory", metavar="SIZE", help="Of the KV pool, e.g. 4GiB.  [default: what the device has left]"
        ),
        click.option("--num-blocks", type=int, metavar="N", help="Of the KV pool, in place of its size in bytes."),
        click.option(
            "--kv-cache-dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16", "int8", "fp8"]),
            help="Of keys and values in the KV pool.  [default: the model's]",
        ),
        click.option(
            "--speculative-config",
            metavar="JSON",
            help='Drafts, e.g. {"method": "ngram"}: the keys of the section speculative.',
        ),
    ]
    return decorated(function, options)


def bundle_options(function: Callable) -> Callable:
    """--bundle and --bundle-strict, for `resolve_config` too."""
    options = [
        click.option(
            "--bundle",
            type=click.Path(path_type=Path),
            help="Load the programs of this folder, made by `xlaserve build`. It is code: use only what you trust.",
        ),
        click.option(
            "--bundle-strict", is_flag=True, help="Refuse to start where the bundle does not fit, and compile nothing."
        ),
    ]
    return decorated(function, options)


def decorated(function: Callable, options: Sequence[Callable]) -> Callable:
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def resolve_config(
    config_file: Path | None,
    model: str | None,
    settings: Sequence[str],
    generation_config: str | None,
    logprobs_mode: str | None,
    chat_template: Path | None,
    kv_cache_memory: str | None,
    num_blocks: int | None,
    kv_cache_dtype: str | None,
    speculative_config: str | None = None,
    bundle: Path | None = None,
    bundle_strict: bool = False,
    **more: Any,
) -> "Config":
    """The file, then --set, then the options with a name of their own; `more` are section.key (with __) = value.

    An option for the KV pool's size replaces whatever key the file says it with.
    """
    from xlaserve.config import POOL_SIZE_KEYS, load_config

    named = {
        "model.source": model,
        "model.generation_config": generation_config,
        "model.logprobs_mode": logprobs_mode,
        "model.chat_template": None if chat_template is None else str(chat_template),
        "cache.memory": kv_cache_memory,
        "cache.num_blocks": num_blocks,
        "cache.dtype": kv_cache_dtype,
        "compile.bundle": None if bundle is None else str(bundle),
        "compile.bundle_strict": bundle_strict or None,
    } | {key.replace("__", "."): value for key, value in more.items()}
    # JSON is YAML: quoted like this, a path with a colon stays one string.
    overrides = [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
    sized = kv_cache_memory is not None or num_blocks is not None
    replaced = [f"cache.{key}=null" for key in POOL_SIZE_KEYS] if sized else []
    speculative = [] if speculative_config is None else [f"speculative={speculative_config}"]
    return load_config(config_file, [*replaced, *settings, *speculative, *overrides])


def with_config(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """`options` with the command's argument CONFIG: a YAML file, or a model's config.json, which is enough."""
    if config is None:
        return options
    if options["config_file"] is not None:
        raise click.UsageError("The configuration is given twice: as CONFIG and as --config.")
    if config.suffix != ".json":
        return options | {"config_file": config}
    if options["model"] is not None:
        raise click.UsageError(f"The model is given twice: as {config} and as --model.")
    return options | {"model": f"random:{config}"}


def look_for_no_device() -> None:
    """So that jax compiles for hardware that is not here. To be called before jax is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is no driver to check
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # libtpu would ask the cloud what machine this is
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # other processes may use the devices: this one does not
    for name, value in {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_STDERR_LOG_LEVEL": "3"}.items():
        os.environ.setdefault(name, value)  # or it complains that it was not told


def compiler_flags() -> dict[str, str]:
    """What compilers are told by the environment."""
    return {name: os.environ[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if os.environ.get(name)}


def gpu_share() -> float:
    """Of a card's memory, what jax gets there. Raises ConfigError."""
    from xlaserve.errors import ConfigError
    from xlaserve.targets import GPU_SHARE

    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    text = os.environ.get(name) or str(GPU_SHARE)
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"{name} is {text!r}: must be above 0, and at most 1")
    return share


def cache_dir() -> Path:
    """The folder for downloaded models and compiled programs."""
    return Path(os.environ.get("XLASERVE_CACHE") or Path.home() / ".cache" / "xlaserve")


def user_errors(function: Callable) -> Callable:
    """Errors written for the user end the command with their message on stderr, without a traceback.

    The exit code is 2 where the user can mend it (the config, the checkpoint, the request), else 1.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from xlaserve.errors import CheckpointError, ConfigError, InvalidRequest, XlaserveError

        try:
            return function(*args, **kwargs)
        except (ConfigError, CheckpointError, InvalidRequest) as error:
            _fail(error, USER_ERROR)
        except XlaserveError as error:
            _fail(error, ENGINE_ERROR)
        except BrokenPipeError:
            # The reader of our output has gone (as with `| head`): nothing is wrong. Python would complain at exit
            # when it flushes what is left.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return wrapped


def _fail(error: Exception, code: int) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    sys.exit(code)
