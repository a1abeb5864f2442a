"""The comparison with peers, but for the peers: medians and ratios, processes and their memory, who takes turns."""

import argparse
import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarks import peers
from benchmarks.load import Load
from benchmarks.peer_process import PeerFailed, offline, running, server
from benchmarks.peer_table import OURS, Spread, markdown, summary
from tests.server.conftest import make_live, workers  # noqa: F401

ROUNDS = [
    {OURS: {"tokens/s": 100.0, "ready": 5.0}, "peer": {"tokens/s": 50.0}},
    {OURS: {"tokens/s": 90.0, "ready": 6.0}, "peer": {"tokens/s": 60.0}},
    {OURS: {"tokens/s": 120.0, "ready": 4.0}, "peer": {"tokens/s": 40.0}},
]


def test_ratios_are_of_rounds_and_only_where_both_have_the_figure():
    assert summary(ROUNDS) == {
        "tokens/s": {
            OURS: {"value": Spread(100, 90, 120)},
            "peer": {"value": Spread(50, 40, 60), "ratio": Spread(2.0, 1.5, 3.0)},
        },
        "ready": {OURS: {"value": Spread(5, 4, 6)}},
    }


def test_the_table_has_a_line_for_each_figure():
    assert markdown(ROUNDS).splitlines() == [
        "| | xlaserve | peer |",
        "|---|---|---|",
        "| tokens/s | 100 (90.0 to 120) | 50.0 (40.0 to 60.0); **2.00 (1.50 to 3.00)** |",
        "| ready | 5.00 (4.00 to 6.00) |  |",
    ]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_ready_when_its_health_is_and_is_gone_in_the_end():
    with server([*python(SERVER), "{port}"], "/health") as (url, ready, peer):
        assert url.startswith("http://127.0.0.1:")
        assert 0 < ready <= peer.seconds
        assert 1 < peer.memory_mib("VmRSS") <= peer.memory_mib("VmHWM")
    assert peer.process.returncode is not None


def test_a_server_that_ends_or_is_never_ready_is_told_with_what_it_wrote(monkeypatch):
    failing = python("import sys; print('no such model', file=sys.stderr); sys.exit(3)")
    with pytest.raises(PeerFailed, match=r"(?s)exit code 3 before it was ready.*no such model"), server(failing, "/"):
        pass
    monkeypatch.setattr("benchmarks.peer_process.READY_SECONDS", 1.0)
    with pytest.raises(PeerFailed, match="not ready after 1 s"), server([*python(SERVER), "{port}"], "/other"):
        pass


CHILD = """
import os, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)  # the signal to the group does not reach it
    block = b"x" * 2**26
print("there", flush=True)
time.sleep(600)
"""


def test_children_count_for_memory_and_are_ended_too():
    with running(python(CHILD)) as peer:
        peer.wait(lambda: peer.written().count(b"there") == 2, 60.0, "there")
        assert peer.memory_mib("VmRSS") > 64
    assert peer.memory_mib("VmRSS") == 0


def test_lines_of_an_offline_peer():
    wait = "import time; print('{}', flush=True); print('{\"batch\": 1}', flush=True); time.sleep(0.3)"
    ready, rows, peak = offline(python(wait))
    assert rows == [{"batch": 1}]
    assert ready > 0
    assert peak > 1
    with pytest.raises(PeerFailed, match="exit code 1 before it was done"):
        offline(python("import time; print('{}', flush=True); time.sleep(0.3); raise SystemExit(1)"))


def test_what_an_offline_peer_tells_of_time_is_told_where_it_does(monkeypatch):
    rows = [
        {"batch": batch, "tokens_per_s": 10.0 * batch + n, "ttft_ms": 5.0 + n}
        for batch in (1, 8, 16)
        for n in (0, 1, 2)
    ]
    monkeypatch.setattr(peers, "offline", lambda command: (2.0, rows, 300.0))
    assert peers.in_batches(["peer"]) == {
        "offline, batch of 1, tokens/s": 11.0,
        "offline, batch of 8, tokens/s": 81.0,
        "offline, batch of 16, tokens/s": 161.0,
        peers.TTFT: 6.0,
        peers.READY: 2.0,
        peers.PEAK: 300.0,
    }
    del rows[0]["ttft_ms"]
    assert peers.TTFT not in peers.in_batches(["peer"])


def test_loads_over_http(monkeypatch, make_live):  # noqa: F811
    live = make_live()

    @contextmanager
    def started(command, health):
        resident = {"VmRSS": 40.0, "VmHWM": 50.0}
        yield live.url, 1.5, SimpleNamespace(memory_mib=resident.__getitem__, failed=PeerFailed)

    monkeypatch.setattr(peers, "server", started)
    loads = {name: Load(num_requests=3, concurrency=2, prompt_words=3, max_tokens=4) for name in ("c=1", "c=8")}
    monkeypatch.setattr(peers, "HTTP_LOADS", loads)
    found = peers.over_http(["any"], "/ready", ["c=1", "c=8"])
    assert found.keys() == {"c=1, tokens/s", peers.TTFT, "c=8, tokens/s", peers.READY, peers.PEAK, peers.REST}
    assert (found[peers.READY], found[peers.PEAK], found[peers.REST]) == (1.5, 50.0, 40.0)  # the toy has no weights
    assert peers.REST not in peers.over_http(["any"], "/health", ["c=1"])
    loads["c=1"] = Load(num_requests=1, concurrency=1, prompt_words=3, max_tokens=2**20)  # more than the context
    with pytest.raises(PeerFailed, match="c=1: 1 answers too short"):
        peers.over_http(["any"], "/health", ["c=1"])


def chosen(loads: list[str], **given) -> list[str]:
    nothing = {"vllm": None, "llama": [], "openvino": None}
    return [each.name for each in peers.contenders(argparse.Namespace(model="demo", loads=loads, **nothing | given))]


def test_who_takes_turns():
    given = {"vllm": ["env", "folder"], "llama": ["server", "x/a.gguf", "x/b.gguf"], "openvino": ["python", "a.gguf"]}
    http = [OURS, "vLLM", "llama.cpp, a", "llama.cpp, b"]
    assert chosen(["mixed", "offline"], **given) == [*http, OURS, "OpenVINO GenAI"]
    assert chosen(["c=1"], **given) == http
    assert chosen(["offline"], **given) == [OURS, "OpenVINO GenAI"]
    assert chosen(["c=1", "offline"]) == [OURS, OURS]


def test_peers_get_the_cores_of_this_process_and_keep_no_prompts():
    cores = str(len(os.sched_getaffinity(0)))
    command = peers.llama("llama-server", "a.gguf")
    assert command[command.index("-t") + 1] == cores
    assert "--no-cache-prompt" in command
    assert f"OMP_NUM_THREADS={cores}" in peers.vllm("env", "folder")
    assert "--no-enable-prefix-caching" in peers.vllm("env", "folder")
