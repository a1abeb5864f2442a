"""xlaserve serve: the HTTP server, from binding the port to the last answer."""

import logging
import os
import signal
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlaserve.cli.options import bundle_options, cache_dir, config_options, resolve_config, user_errors

if TYPE_CHECKING:
    from xlaserve.config import Config
    from xlaserve.engine.served_models import ServedModels
    from xlaserve.server.state import ServerState

DRAIN_SECONDS = 30.0  # for running requests, once asked to stop
BATCH_SECONDS = 5.0  # likewise, for lines of batches to be left


@click.command(name="serve", short_help="Serve a model over HTTP, compatible with OpenAI's API.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@config_options
@bundle_options
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="0: any free port.  [default: 8000]")
@click.option(
    "--api-key",
    envvar="XLASERVE_API_KEY",
    show_envvar=True,
    help="Requests must carry this key. Other users of the machine see options, but not the environment.",
)
@click.option(
    "--admin-key",
    envvar="XLASERVE_ADMIN_KEY",
    show_envvar=True,
    help="Of who may give orders: see `xlaserve admin`. Without one nobody may.",
)
@click.option(
    "--files-dir", type=click.Path(path_type=Path), help="Folder for uploaded files and batches.  [default: none]"
)
@click.option(
    "--api-workers",
    type=int,
    help="Processes that make and write streamed answers beside the engine's.  [default: 0, a thread does]",
)
@click.option(
    "--tool-call-parser",
    type=click.Choice(["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"]),
    help="How the model writes tool calls; auto: as its chat template tells.  [default: auto]",
)
@click.option(
    "--reasoning-parser",
    type=click.Choice(["auto", "none", "think"]),
    help="think: answers begin with <think>...</think>; auto: as the chat template tells.  [default: auto]",
)
@user_errors
def command(
    config: Path | None,
    host: str | None,
    port: int | None,
    api_key: str | None,
    admin_key: str | None,
    files_dir: Path | None,
    api_workers: int | None,
    tool_call_parser: str | None,
    reasoning_parser: str | None,
    **options: Any,
) -> None:
    """Serve a model over HTTP, compatible with OpenAI's API. CONFIG is a YAML file; without one, defaults apply.

    The port is bound at once and answers 503 until the model is ready: see /health and /ready. SIGTERM and Ctrl-C let
    running requests finish (30 seconds at most); a second one ends the server at once.

    \b
    Examples:
      xlaserve serve
      xlaserve serve configs/demo.yaml --port 9000
      xlaserve serve --model Qwen/Qwen3-0.6B --set cache.memory=4GiB --host 0.0.0.0
      curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}'
    """
    if config is not None and options["config_file"] is not None:
        raise click.UsageError("The configuration is given twice: as CONFIG and as --config.")
    options["config_file"] = config or options["config_file"]
    named = {
        "server__host": host,
        "server__port": port,
        "server__admin_key": admin_key,
        "server__files__folder": None if files_dir is None else str(files_dir),
        "server__api_workers": api_workers,
        "model__tool_parser": tool_call_parser,
        "model__reasoning_parser": reasoning_parser,
    }
    if api_key is not None:
        named["server__api_keys__default"] = {"key": api_key}
    serve(resolve_config(**options, **named))


def serve(config: "Config") -> None:
    """Returns when asked to stop and all is finished. Raises ConfigError or CheckpointError when it cannot start."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from xlaserve.cli.engine import shut_down
    from xlaserve.cli.memory import calm_garbage_collector, give_back_memory, keep_heaps_small
    from xlaserve.server import wsgi
    from xlaserve.server.admin_access import AdminAccess, read_admin_key
    from xlaserve.server.app import create_app
    from xlaserve.server.auth import ApiKeys, read_keys
    from xlaserve.server.batches.batches import Batches
    from xlaserve.server.responses_api.store import ResponseStore
    from xlaserve.server.state import ServerState
    from xlaserve.server.workers.workers import Workers

    keep_heaps_small()
    keys = read_keys(config.server.api_keys)
    access = AdminAccess(read_admin_key(config.server, keys.values()), config.server.admin_paths)
    limits = {"max_requests": config.server.max_connections, "max_body": config.server.max_body}
    sock = wsgi.bind(config.server.host, config.server.port)  # before the long work of loading
    state = ServerState(**limits)
    files = config.server.files
    batches = Batches(files.folder, files, state) if files.folder else None
    app = create_app(state, ApiKeys(keys), batches, ResponseStore(config.server.responses), access)
    workers = Workers(config.server.api_workers) if config.server.api_workers else None
    max_upload = files.max_file_bytes if batches else None
    server = wsgi.HttpServer(app, sock, max_upload=max_upload, workers=workers, **limits)
    stop = _stop_signal()
    models = None
    try:
        models = _load(config, state, stop)
        if not _compiles(models):
            give_back_memory()
        calm_garbage_collector()
        if batches:
            batches.measure(models)
        if workers:
            workers.prepare(models)
        state.set_ready(models)
        names = ", ".join(slot.name for slot in models.slots)
        click.echo(f"Serving {names} on http://{server.host}:{server.port}", err=True)
        stop.wait()
        click.echo("Stopping: running requests may finish. Ask again to end at once.", err=True)
        state.drain()
        if batches:
            batches.stop(BATCH_SECONDS)
        state.places.wait_until_idle(DRAIN_SECONDS)
        state.stop()
    finally:
        server.close()
        if workers:
            workers.stop()
        if batches:
            batches.stop(BATCH_SECONDS)
            batches.close()
        for service in models or ():
            shut_down(service)
    if _compiles(models):
        os._exit(0)  # Python would wait for it, longer perhaps than one who wants this process to end


def _compiles(models: "ServedModels | None") -> bool:
    if models is None:
        return False
    return any(service.late.is_busy for service in models) or any(slot.is_loading for slot in models.slots)


def _load(config: "Config", state: "ServerState", stop: threading.Event) -> "ServedModels":
    """Builds the engines on a thread of its own, so that this one hears signals while programs compile."""
    from xlaserve.cli.console import ConsoleReporter, Reporters
    from xlaserve.engine.start_models import start_models

    outcome: Future[ServedModels] = Future()

    def build() -> None:
        try:
            with ConsoleReporter() as console:
                models = start_models(config, cache_dir=cache_dir(), reporter=Reporters(state, console))
                folder = config.server.files.folder
                told = "uploaded files and batches" if folder else "no files, no batches: see --files-dir"
                console.info("server.files.folder", folder, told)
                count = config.server.api_workers
                told = f"{'processes' if count else 'a thread'} beside the engine: what streamed answers are written by"
                console.info("server.api_workers", count, told)
            console.banner()
            outcome.set_result(models)
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=build, name="load", daemon=True).start()
    while not outcome.done():
        wait([outcome], timeout=0.1)
        if stop.is_set():
            click.echo("Stopped while loading.", err=True)
            os._exit(0)  # a compilation cannot be cancelled, and Python cannot exit around one
    return outcome.result()


def _stop_signal() -> threading.Event:
    """An event that SIGTERM and SIGINT set; the second of them ends the process."""
    stop = threading.Event()

    def on_signal(number: int, _frame: Any) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop
