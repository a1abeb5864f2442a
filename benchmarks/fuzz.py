"""Random requests, right, wrong, junk and left half-way, against a live server, and what must hold whatever they are.

    python -m benchmarks.fuzz                            # starts a server on a tiny random model, on a free port
    python -m benchmarks.fuzz --url http://127.0.0.1:8000 --pid 123   # a server that runs and does nothing else

No answer is a 5xx (but for the 504 of a request with a `timeout`), every error has OpenAI's shape, no connection is
dropped; in the end no KV block is in use and no request left, and the server's resident memory is within 5% of what it
was after a warm-up by the same kind of load. Exits with 1 when something does not hold, and shows the first requests.
"""

import argparse
import http.client
import json
import re
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from benchmarks.fuzz_requests import FuzzRequest, Generator
from xlaserve.bench.server_process import serving_process

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)
SETTINGS = ["scheduler.max_num_seqs=8", "cache.num_blocks=400"]
TIMEOUT_SECONDS = 60.0  # of one answer
IDLE_SECONDS = 30.0  # until what was left half-way is gone
MAX_GROWTH = 1.05  # of resident memory
MAX_SHOWN = 10
RESPONSE_ENDS = tuple(b"event: response.%s\n" % end for end in (b"completed", b"incomplete", b"failed"))
IN_USE = ("kv_blocks_used", "num_requests_running", "num_requests_waiting")


class Requests(Protocol):
    def next(self) -> FuzzRequest: ...


class Outcomes:
    """What came of the requests so far: counts by kind and status, and the faults."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def add(self, request: FuzzRequest, status: str, fault: str | None) -> None:
        with self._lock:
            self.counts[request.kind, status] += 1
            if fault:
                self.faults.append(f"{fault}: {request.method} {request.path} {request.body[:300]!r}")


def send(url: str, request: FuzzRequest) -> tuple[str, str | None]:
    """The status, or what stands for it, and what is wrong with the answer."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(request.method, request.path, request.body, {"Content-Type": request.content_type})
        if request.leaves == 0:
            return "left", None
        response = connection.getresponse()
        if request.leaves is not None:
            response.read(request.leaves)
            return "left", None
        body = response.read()
        return str(response.status), find_fault(request, response.status, response.getheader("Content-Type", ""), body)
    except TimeoutError:
        return "hung", f"no answer within {TIMEOUT_SECONDS:.0f} s"
    except (OSError, http.client.HTTPException) as error:
        return "dropped", f"the connection was dropped ({error!r})"
    finally:
        connection.close()


def find_fault(request: FuzzRequest, status: int, content_type: str | None, body: bytes) -> str | None:
    may_time_out = b'"timeout"' in request.body
    if status >= 500 and not (status == 504 and may_time_out):
        return f"status {status} ({body[:200]!r})"
    if status >= 400 and request.method != "HEAD":
        return find_fault_of_error(body)
    if (content_type or "").startswith("text/event-stream"):
        events = body.split(b"\n\n")
        is_response = request.path == "/v1/responses"
        if (
            len(events) < 2
            or events[-1]
            or not events[-2].startswith(RESPONSE_ENDS if is_response else b"data: [DONE]")
        ):
            return "the stream has no end"
        if events[-2].startswith(b"event: response.failed") and not may_time_out:
            return f"a response has failed ({events[-2][:300]!r})"
        errors = [event for event in events if event.startswith(b'data: {"error"')]
        if any(b'"server_error"' in event for event in errors) and not may_time_out:
            return f"a server error in a stream ({errors[0][:200]!r})"
    return None


def find_fault_of_error(body: bytes) -> str | None:
    try:
        error = json.loads(body)["error"]
        if set(error) == {"message", "type", "param", "code"} and error["message"] and isinstance(error["type"], str):
            return None
    except (ValueError, KeyError, TypeError):
        pass
    return f"the error has not OpenAI's shape ({body[:200]!r})"


def put_load(url: str, generator: Requests, count: int, threads: int, outcomes: Outcomes) -> None:
    requests = (generator.next() for _ in range(count))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                request = next(requests, None)
            if request is None:
                return
            outcomes.add(request, *send(url, request))

    workers = [threading.Thread(target=work, name="fuzz") for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def in_use(url: str) -> dict[str, float]:
    """Blocks, running and waiting requests, once they are 0 or do not get there."""
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_SECONDS) as response:
            text = response.read().decode()
        found = {name: float(re.findall(rf"^xlaserve:{name}{{.*}} (\S+)$", text, re.MULTILINE)[0]) for name in IN_USE}
        if not any(found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def resident_mib(pid: int) -> float:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


@contextmanager
def own_server() -> Iterator[tuple[str, int]]:
    """The URL and process id of a server on a tiny random model, with files and batches."""
    with tempfile.TemporaryDirectory() as folder:
        config, template = Path(folder, "config.json"), Path(folder, "template.jinja")
        config.write_text(json.dumps(CONFIG))
        template.write_text(TEMPLATE)
        arguments = ["--model", f"random:{config}", "--chat-template", str(template), "--files-dir", f"{folder}/files"]
        arguments += ["--tool-call-parser", "hermes", "--reasoning-parser", "think"]
        with serving_process([*arguments, *(part for setting in SETTINGS for part in ("--set", setting))]) as (
            url,
            pid,
        ):
            yield url, pid


def fuzz(url: str, pid: int | None, *, count: int, warm_up: int, threads: int, seed: int) -> list[str]:
    """Prints the table; returns what does not hold."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=TIMEOUT_SECONDS) as response:
        model = json.loads(response.read())["data"][0]["id"]
    outcomes = Outcomes()
    put_load(url, Generator(seed + 1, model), warm_up, threads, outcomes)
    in_use(url)
    before = resident_mib(pid) if pid else None
    started = time.monotonic()
    put_load(url, Generator(seed, model), count, threads, outcomes)
    seconds = time.monotonic() - started
    faults = outcomes.faults
    left = in_use(url)
    faults += [f"{name} is {value:g} in the end" for name, value in left.items() if value]
    print("| requests | " + " | ".join(statuses := sorted({status for _, status in outcomes.counts})) + " |")
    print("|---" * (1 + len(statuses)) + "|")
    for kind in sorted({kind for kind, _ in outcomes.counts}):
        print(f"| {kind} | " + " | ".join(str(outcomes.counts[kind, status]) for status in statuses) + " |")
    print(f"\n{count} requests in {seconds:.0f} s after {warm_up} to warm up; in use: {left}")
    if before and pid:
        after = resident_mib(pid)
        print(f"resident memory: {before:.1f} MiB after the warm-up, {after:.1f} MiB in the end")
        if after > MAX_GROWTH * before:
            faults.append(f"resident memory grew by {after / before - 1:.1%}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a server that runs; default: start one")
    parser.add_argument("--pid", type=int, help="of its process, whose memory is then looked at")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=2500)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = {"count": options.requests, "warm_up": options.warm_up, "threads": options.threads, "seed": options.seed}
    if options.url:
        faults = fuzz(options.url, options.pid, **sizes)
    else:
        with own_server() as (url, pid):
            faults = fuzz(url, pid, **sizes)
    for fault in faults[:MAX_SHOWN]:
        print(fault, file=sys.stderr)
    print(f"{len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
