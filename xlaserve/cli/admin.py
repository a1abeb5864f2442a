"""xlaserve admin: orders to a running server."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from xlaserve.cli.options import user_errors

GRACE_SECONDS = 600.0  # beyond the time-out of an order: to read a checkpoint


@click.group(name="admin", short_help="Give orders to a running server.")
def command() -> None:
    """Give orders to a running server, which must have an admin key, and server.admin_paths for other weights.

    \b
    Examples:
      export XLASERVE_ADMIN_KEY=...
      xlaserve admin swap /models/smollm2-step-2000
      xlaserve admin swap /models/smollm2-step-2000 --policy recompute --url http://10.0.0.5:8000
      xlaserve admin sleep --level 2
      xlaserve admin wake
    """


def server_options(function: Callable) -> Callable:
    """--url and --admin-key."""
    key = click.option(
        "--admin-key", envvar="XLASERVE_ADMIN_KEY", show_envvar=True, required=True, help="The server's."
    )
    url = click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server's.")
    return url(key(function))


@command.command(short_help="Replace the weights of the model.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    type=click.Choice(["drain", "recompute", "abort"]),
    default="drain",
    show_default=True,
    help="What running requests do: finish on the old weights, go on with the new ones, or end with an error.",
)
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds to finish on the old weights.")
@click.option("--model", help="Its name.  [default: the one that is served]")
@server_options
@user_errors
def swap(path: Path, policy: str, timeout: float, model: str | None, url: str, admin_key: str) -> None:
    """Replace the model's weights by those at PATH, a folder or a .gguf file on the server's machine."""
    name = model or call(f"{url}/ready", None, None, timeout=10)["model"]
    body = {"path": str(path.absolute()), "policy": policy, "timeout": timeout}
    target = f"{url}/admin/models/{urllib.parse.quote(name)}/weights"
    reply = call(target, admin_key, body, timeout=timeout + GRACE_SECONDS)
    parts = ", ".join(f"{part} {seconds:.2f} s" for part, seconds in reply["seconds"].items())
    click.echo(f"{name}: weights version {reply['weights_version']}, from {reply['path']} ({parts})")
    if reply["ended_requests"]:
        click.echo(f"{reply['ended_requests']} requests ended with an error", err=True)


@command.command(short_help="Free the device's memory.")
@click.option("--level", type=click.Choice(["1", "2"]), default="1", show_default=True)
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds for what runs to end.")
@click.option("--model", help="Its name.  [default: all models]")
@server_options
@user_errors
def sleep(level: str, timeout: float, model: str | None, url: str, admin_key: str) -> None:
    """Free the device's memory until `wake`: the server's models take no requests.

    Level 1: the weights go to the host's memory. Level 2: they are dropped, with the KV pool, and read again to wake.
    """
    _tell(_order(url, "sleep", admin_key, {"level": level, "timeout": timeout, "model": model}, timeout))


@command.command(short_help="Take requests again.")
@click.option("--model", help="Its name.  [default: all models]")
@server_options
@user_errors
def wake(model: str | None, url: str, admin_key: str) -> None:
    """Wake the server's models, which then take requests again."""
    _tell(_order(url, "wake", admin_key, {"model": model}, 0.0))


@command.command(short_help="Load a model that is on demand.")
@click.argument("model")
@server_options
@user_errors
def load(model: str, url: str, admin_key: str) -> None:
    """Load MODEL before its first request comes."""
    _come_or_go(url, model, "load", admin_key)


@command.command(short_help="Send a model on demand away.")
@click.argument("model")
@server_options
@user_errors
def unload(model: str, url: str, admin_key: str) -> None:
    """Free the memory of MODEL, once nobody uses it; its next request loads it again."""
    _come_or_go(url, model, "unload", admin_key)


def _come_or_go(url: str, model: str, order: str, admin_key: str) -> None:
    target = f"{url}/admin/models/{urllib.parse.quote(model)}/{order}"
    reply = call(target, admin_key, {}, timeout=GRACE_SECONDS)
    click.echo(f"{model}: {reply['state']} (after {reply['seconds']:.2f} s)")


def _order(url: str, name: str, admin_key: str, asked: dict[str, Any], timeout: float) -> dict[str, Any]:
    query = urllib.parse.urlencode({key: value for key, value in asked.items() if value is not None})
    return call(f"{url}/admin/{name}?{query}", admin_key, {}, timeout=timeout + GRACE_SECONDS)


def _tell(reply: dict[str, Any]) -> None:
    for name, level in reply["sleep_levels"].items():
        click.echo(f"{name}: {f'asleep, level {level}' if level else 'awake'} (after {reply['seconds']:.2f} s)")


def call(url: str, admin_key: str | None, body: dict | None, *, timeout: float) -> dict[str, Any]:
    """POSTs `body`, or GETs where there is none. Raises XlaserveError with what the server says."""
    from xlaserve.errors import ConfigError, XlaserveError

    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {admin_key}"} if admin_key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise (ConfigError if error.code < 500 else XlaserveError)(_message(error)) from None
    except (OSError, ValueError) as error:
        raise XlaserveError(f"{url}: {getattr(error, 'reason', error)}") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return json.load(error)["error"]["message"]
    except (OSError, ValueError, LookupError, TypeError):
        return f"{error.code} {error.reason}"
