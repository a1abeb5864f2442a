"""`xlaserve serve` from start to end: the port, loading, signals."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.filing import form
from tests.server.harness import wait_until

PATIENCE = 60  # seconds for what should take a moment, on a machine that is busy with more


@contextmanager
def serving(*arguments: str, script: str = "hello", step_seconds: float = 0.0, load_seconds: float = 0.0):
    command = [sys.executable, "-m", "tests.cli.toy_command", script, str(step_seconds), str(load_seconds)]
    process = subprocess.Popen(
        [*command, "serve", "--port", str(free_port()), *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def port_of(process: subprocess.Popen) -> int:
    return int(process.args[process.args.index("--port") + 1])


def request(
    process: subprocess.Popen,
    method: str,
    path: str,
    body: dict | bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(process), timeout=PATIENCE)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"} | (headers or {}))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_for(process: subprocess.Popen, text: str) -> list[str]:
    """Reads stderr up to the line that holds `text`."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def wait_for_status(process: subprocess.Popen, status: int) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            if request(process, "GET", "/health")[0] == status:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"/health never answered {status}")


STREAM = {"model": "toy", "prompt": "hi", "stream": True, "max_tokens": 80}


@contextmanager
def running_stream(process: subprocess.Popen):
    """A stream whose events are read in the background; yields the list they come into."""
    events = []
    started = threading.Event()

    def read() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(process), timeout=30)
        connection.request("POST", "/v1/completions", json.dumps(STREAM), {"Content-Type": "application/json"})
        response = connection.getresponse()
        try:
            while line := response.readline():
                events.append(line)
                started.set()
        except OSError:
            pass
        finally:
            connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    assert started.wait(PATIENCE)
    yield events
    thread.join(10)
    assert not thread.is_alive()


def test_the_banner_shows_the_settings_and_where_it_serves():
    with serving("--model", "demo", "--tool-call-parser", "mistral", "--reasoning-parser", "think") as process:
        shown = "".join(wait_for(process, "Serving"))
        assert "model.source = demo (as told)" in shown
        assert "parsers = mistral, think (as told)" in shown
        assert f"Serving toy on http://127.0.0.1:{port_of(process)}" in shown
        assert request(process, "POST", "/v1/completions", {"model": "toy", "prompt": "hi"})[0] == 200


@pytest.mark.parametrize("how", ["option", "environment"])
def test_an_api_key_is_asked_for_and_not_shown(how, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("XLASERVE_API_KEY", "sk-secret")
    with serving(*(["--api-key", "sk-secret"] if how == "option" else [])) as process:
        assert "sk-secret" not in "".join(wait_for(process, "Serving"))
        body = {"model": "toy", "prompt": "hi"}
        assert request(process, "POST", "/v1/completions", body)[0] == 401
        assert request(process, "POST", "/v1/completions", body, {"Authorization": "Bearer sk-secret"})[0] == 200
        assert request(process, "GET", "/health")[0] == 200


def test_a_taken_port_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving("--port", port, load_seconds=600) as process:
            assert process.wait(PATIENCE) == 2  # before anything is loaded
            message = process.stderr.read()
            assert f"127.0.0.1:{port}" in message
            assert re.search("in use", message)
            assert "Traceback" not in message


def test_report_86_the_port_answers_503_while_loading_and_a_signal_ends_that():
    with serving(load_seconds=600) as process:
        wait_for(process, "loading a toy")
        assert request(process, "GET", "/health")[0] == 503
        assert json.loads(request(process, "GET", "/ready")[1])["step"] == "loading a toy"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_report_86_a_signal_lets_running_requests_finish(number, workers):
    with serving("--api-workers", str(workers), script="x" * 20, step_seconds=0.05) as process:
        wait_for_status(process, 200)
        with running_stream(process) as events:
            process.send_signal(number)
            wait_for_status(process, 503)
            assert request(process, "POST", "/v1/completions", STREAM)[0] == 503
        assert b"data: [DONE]\n" in events
        assert not any(b'"error"' in event for event in events)
        assert process.wait(PATIENCE) == 0


def test_report_86_a_second_signal_ends_at_once():
    with serving(script="x" * 500, step_seconds=0.5) as process:
        wait_for_status(process, 200)
        with running_stream(process):
            process.send_signal(signal.SIGTERM)
            wait_for_status(process, 503)
            process.send_signal(signal.SIGTERM)
            assert process.wait(2) == 128 + signal.SIGTERM


def children_of(process: subprocess.Popen) -> list[int]:
    lists = [file.read_text() for file in Path(f"/proc/{process.pid}/task").glob("*/children")]
    return [int(child) for shown in lists for child in shown.split()]


def is_running(pid: int) -> bool:
    """A process whose parent has died may stay on as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_tells_its_clients_when_the_server_is_killed_and_ends():
    with serving("--api-workers", "1", script="x" * 500, step_seconds=0.2) as process:
        shown = "".join(wait_for(process, "Serving"))
        assert "server.api_workers = 1 (processes beside the engine: what streamed answers are written by)" in shown
        (worker,) = children_of(process)
        with running_stream(process) as events:
            os.kill(worker, signal.SIGTERM)  # as the whole group gets it
            process.kill()
        assert b"The server has ended before the request was finished." in events[-4]
        assert b"data: [DONE]\n" in events
        assert wait_until(lambda: not is_running(worker), 20)


def test_report_86_a_signal_is_not_kept_waiting_by_what_compiles():
    """A compilation in the background can be stopped by nothing but the end of the process."""
    with serving("--set", "compile.serve_early=true") as process:
        wait_for_status(process, 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_restart_at_once_gets_the_port_again():
    with serving() as first:
        wait_for_status(first, 200)
        request(first, "POST", "/v1/completions", {"model": "toy", "prompt": "hi"})
        first.kill()
        first.wait(PATIENCE)
        with serving("--port", str(port_of(first))) as second:
            wait_for(second, "Serving")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_batch_goes_on_after_the_server_has_ended(tmp_path, number):
    folder = str(tmp_path / "files")
    asked = {"method": "POST", "url": "/v1/completions", "body": {"model": "toy", "prompt": "hi", "max_tokens": 5}}
    lines = "".join(json.dumps({"custom_id": str(n)} | asked) + "\n" for n in range(40))
    body, headers = form({"purpose": "batch"}, [("file", "in.jsonl", lines.encode())])

    def look(process: subprocess.Popen) -> dict:
        return json.loads(request(process, "GET", path)[1])

    with serving("--files-dir", folder, script="x" * 20, step_seconds=0.02) as first:
        assert f"server.files.folder = {folder} (uploaded files and batches)" in "".join(wait_for(first, "Serving"))
        file_id = json.loads(request(first, "POST", "/v1/files", body, headers)[1])["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        path = f"/v1/batches/{json.loads(request(first, 'POST', '/v1/batches', asked)[1])['id']}"
        assert wait_until(lambda: look(first)["request_counts"]["completed"] >= 4, 20)
        first.send_signal(number)
        assert first.wait(PATIENCE) == (0 if number == signal.SIGTERM else -number)
    with serving("--files-dir", folder, script="x" * 20) as second:
        wait_for(second, "Serving")
        assert wait_until(lambda: look(second)["status"] == "completed", 20)
        batch = look(second)
        assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        results = request(second, "GET", f"/v1/files/{batch['output_file_id']}/content")[1].splitlines()
        assert sorted(int(json.loads(result)["custom_id"]) for result in results) == list(range(40))
        with serving("--files-dir", folder) as third:
            assert third.wait(PATIENCE) == 2
            assert "another server uses it" in third.stderr.read()


def test_a_broken_checkpoint_ends_the_server_with_its_message():
    with serving("--model", "broken") as process:
        assert process.wait(PATIENCE) == 2
        message = process.stderr.read()
        assert "Error: broken/model.safetensors: has 5 bytes; expected 8" in message
        assert "Traceback" not in message


def test_a_config_given_twice_is_refused():
    with serving("a.yaml", "--config", "b.yaml") as process:
        assert process.wait(PATIENCE) == 2
        assert "twice" in process.stderr.read()
