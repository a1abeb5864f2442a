"""xlaserve bench serving against live servers: ours, and ones that answer as a server should not."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner, Result

from xlaserve.bench.client import CHAT, Server, model_of, send_all
from xlaserve.bench.server_process import ServerFailed
from xlaserve.bench.workload import Job
from xlaserve.cli.main import main

SMALL = ("--num-prompts", 6, "--input-len", 2, "--output-len", 5)


@pytest.fixture
def live(make_live):
    return make_live(b"HELLO")  # prompts must not end as it begins


def bench(url: str, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "serving", "--base-url", url, *map(str, arguments)])


@contextmanager
def answering(*pieces: bytes, status: int = 200, pause: float = 0.0) -> Iterator[tuple[str, list[dict]]]:
    """A server that says this to every request, a pause before each piece; its URL, and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.say(b'{"data": []}')

        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path})
            asked[-1]["authorization"] = self.headers.get("Authorization")
            self.say(*pieces)

        def say(self, *pieces: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            for piece in pieces:
                time.sleep(pause)
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def send(url: str, *jobs: Job, max_concurrency: int | None = None, warmups: int = 0, **server):
    done = []
    sending = send_all(
        Server(url, "m", **server),
        jobs or [Job("one two", 4)],
        max_concurrency=max_concurrency,
        warmups=warmups,
        on_done=lambda: done.append(1),
    )
    answers = asyncio.run(sending)
    assert len(done) == len(answers)
    return answers


def event(**fields) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


TEXT = event(choices=[{"text": "a"}])
USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4})
DONE = b"data: [DONE]\n\n"


def test_figures_and_files(live, tmp_path):
    figures, picture = tmp_path / "run.json", tmp_path / "run.png"
    outputs = ("--json", figures, "--plot", picture, "--metric-percentiles", "50,90")
    done = bench(live.url, *SMALL, "--max-concurrency", 2, *outputs, "--goodput", "ttft:60000 e2el:60000")
    assert done.exit_code == 0, done.output
    report = json.loads(figures.read_text())
    assert (report["completed"], report["failed"], report["short_answers"]) == (6, 0, 0)
    assert report["total_output_tokens"] == 6 * 5
    assert report["max_concurrent_requests"] == 2
    assert report["request_goodput"] == report["request_throughput"]
    assert report["options"]["model"] == "toy"  # the first that the server lists
    assert f"{report['p90_ttft_ms']:.1f}" in next(line for line in done.stdout.splitlines() if line.startswith("TTFT"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert live.service.stats()["running"] == 0


@pytest.mark.parametrize("endpoint", ["/v1/completions", CHAT])
def test_lengths_are_those_asked_for(live, endpoint):
    more = ("--ignore-eos", "--output-len", 9, "--endpoint", endpoint, "--dataset-name", "random")
    done = bench(live.url, "--num-prompts", 3, "--input-len", 2, *more)  # left alone it ends after five
    assert done.exit_code == 0, done.output
    assert "27 tokens" in done.stdout


def test_short_answers_are_told(live):
    done = bench(live.url, "--num-prompts", 2, "--input-len", 2, "--output-len", 9)
    assert next(line for line in done.stdout.splitlines() if line.startswith("short answers")).split()[2] == "2"


def test_failures_are_told_and_are_the_exit_code(live):
    done = bench(live.url, *SMALL, "--extra-body", '{"temperature": -1}', "--temperature", 0)
    assert done.exit_code == 1
    assert "warm up failed: 400" in done.stderr
    assert "temperature" in done.stderr


def test_a_server_that_is_not_there():
    done = bench("http://127.0.0.1:9", *SMALL)
    assert done.exit_code == 1
    assert "http://127.0.0.1:9/v1/models" in done.stderr


def test_a_server_without_models():
    with answering() as (url, _), pytest.raises(ServerFailed, match="--model"):
        asyncio.run(model_of(url, None))


def test_times_and_counts():
    with answering(TEXT, TEXT, event(choices=[{"text": ""}]), USAGE, DONE, pause=0.02) as (url, _):
        (answer,) = send(url)
    assert answer.error is None
    assert (len(answer.pieces), answer.prompt_tokens, answer.output_tokens) == (2, 3, 4)
    assert answer.pieces[0] >= answer.sent + 0.02
    assert answer.pieces[1] >= answer.pieces[0] + 0.01
    assert answer.done >= answer.pieces[1] + 0.05


def test_without_usage_pieces_count():
    with answering(TEXT, TEXT, DONE) as (url, _):
        assert send(url)[0].output_tokens == 2


@pytest.mark.parametrize(
    ("pieces", "status", "told"),
    [
        ((TEXT,), 200, "ended before"),
        ((event(error={"message": "broken"}), DONE), 200, "broken"),
        ((b"busy",), 503, "503 busy"),
        ((b"data: {\n\n",), 200, "JSONDecodeError"),
        ((event(usage={"prompt_tokens": 1}), DONE), 200, "KeyError"),
    ],
    ids=["cut", "error", "status", "no-json", "half-usage"],
)
def test_what_is_no_answer_is_a_failure(pieces, status, told):
    with answering(*pieces, status=status) as (url, _):
        (answer,) = send(url)
        assert told in (answer.error or "")
        with pytest.raises(ServerFailed, match="warm up"):
            send(url, warmups=1)


def test_what_is_sent():
    with answering(DONE) as (url, asked):
        send(url, Job("one two", 4), warmups=2, api_key="secret", body={"top_k": 3})
        send(url, Job("one two", 4), endpoint=CHAT)
    assert len(asked) == 4
    assert asked[0]["authorization"] == "Bearer secret"
    assert (asked[0]["prompt"], asked[0]["max_tokens"], asked[0]["top_k"]) == ("one two", 4, 3)
    assert asked[3]["path"] == CHAT
    assert asked[3]["messages"] == [{"role": "user", "content": "one two"}]
    assert (asked[3]["max_completion_tokens"], asked[3]["authorization"]) == (4, None)


def test_a_key_is_not_shown():
    assert "secret" not in repr(Server("http://a", "m", api_key="secret"))


def test_requests_are_sent_when_they_arrive():
    with answering(TEXT, DONE) as (url, _):
        first, last = send(url, Job("a", 1, 0.0), Job("b", 1, 0.3))
    assert last.sent - first.sent >= 0.25


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--dataset-name", "custom"), "needs --dataset-path"),
        (("--dataset-path", "a"), "reads no file"),
        (("--dataset-name", "custom", "--dataset-path", "/none"), "cannot be read"),
        (("--goodput", "itl:5"), "--goodput itl:5"),
        (("--goodput", "ttft"), "--goodput ttft"),
        (("--metric-percentiles", "9x"), "--metric-percentiles 9x"),
        (("--metric-percentiles", "101"), "between 0 and 100"),
        (("--extra-body", "["), "is no JSON"),
        (("--extra-body", "[]"), "JSON object"),
        (("--request-rate", 0, "--model", "m"), "above 0"),
        (("--json", "/none/run.json"), "there is no folder /none"),
        (("--random-range-ratio", 1), "below 1"),
        (("--custom-output-len", 5), "--custom-output-len: the dataset is random"),
        (("--dataset-name", "sharegpt", "--input-len", 5), "--random-input-len: the dataset is sharegpt"),
        (("--dataset-name", "sharegpt", "--sharegpt-output-len", 5), "lengths are drawn"),
        (("--dataset-name", "sharegpt", "--dataset-path", "/none", "--sharegpt-max-len", 5), "those of the file"),
        (("--burstiness", 2, "--model", "m"), "--burstiness: there is no --request-rate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_options(arguments, told):
    done = bench("http://127.0.0.1:9", *arguments)
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_trace_has_its_own_arrivals(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"prompt_tokens": 2, "output_tokens": 1}\n')
    options = ("--dataset-name", "trace", "--dataset-path", trace, "--model", "m")
    assert "of its own" in bench("http://127.0.0.1:9", *options, "--request-rate", 4).stderr
