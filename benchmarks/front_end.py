"""What HTTP, tokenisation, text and events cost a step: closed-loop streams on a server whose device takes 5 ms a step.

    python -m benchmarks.front_end [--streams 64 128] [--step-ms 5] [SERVE ARGUMENTS]

The ideal is a token for each stream every step. Every stream has answers of the same lengths, in an order of its own:
they do not end together. One row per number of streams, in Markdown: output tokens/s, its share of the ideal, the time
to the first byte of an answer, the CPU time per token that the engine's process takes, its API workers together and the
client, and how often the client had to read for each. The client is one process that parses nothing but the end of an
answer; look at its column before you trust the others.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.load import WORDS
from xlaserve.bench.server_process import serving_process

MEAN_TOKENS = 200  # of an answer
_LAST_BYTES = 400  # of an answer: they hold its usage and its end
_COLUMNS = (
    "streams",
    "tokens/s",
    "ideal",
    "share",
    "first byte, ms",
    "engine, µs/token",
    "workers, µs/token",
    "client, µs/token",
    "reads/token",
)


@dataclass
class Answer(asyncio.Protocol):
    """One request on a connection of its own: a server may close it after an answer of unknown length."""

    request: bytes
    done: asyncio.Future
    wait: float = 0.0  # seconds to the first byte
    tokens: int = 0
    reads: int = 0
    tail: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.wait = self.wait or time.perf_counter() - self._sent
        self.reads += 1
        self.tail = (self.tail + data)[-_LAST_BYTES:]
        usage = re.search(rb'"completion_tokens":(\d+)', self.tail) if b"data: [DONE]" in self.tail else None
        if usage is not None and not self.done.done():
            self.tokens = int(usage[1])
            self.done.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(SystemExit(f"no whole answer: {exc}: ...{self.tail!r}"))


def lengths(stream: int, answers: int) -> list[int]:
    """In tokens: from half the mean to one and a half."""
    spread = MEAN_TOKENS if answers > 1 else 0
    evenly = [MEAN_TOKENS - spread // 2 + spread * number // max(1, answers - 1) for number in range(answers)]
    return random.Random(stream).sample(evenly, answers)


async def load(url: str, num_streams: int, answers: int) -> list[Answer]:
    """Of each stream `answers`, one after the other."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    assert host is not None
    assert port is not None
    loop = asyncio.get_running_loop()
    body = {"model": "toy", "prompt": " ".join(WORDS[:32]), "temperature": 0, "stream": True, "ignore_eos": True}
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"

    def request(max_tokens: int) -> bytes:
        text = json.dumps(body | {"max_tokens": max_tokens, "stream_options": {"include_usage": True}})
        return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()

    async def stream(number: int) -> list[Answer]:
        got = [Answer(request(length), loop.create_future()) for length in lengths(number, answers)]
        for answer in got:
            await loop.create_connection(lambda answer=answer: answer, host, port)
            await answer.done
        return got

    return [answer for got in await asyncio.gather(*map(stream, range(num_streams))) for answer in got]


def measure(url: str, pid: int, num_streams: int, answers: int, step_seconds: float) -> dict[str, str]:
    asyncio.run(load(url, num_streams, 1))  # threads are there, connections have been taken once
    before, client, start = cpu_seconds(pid), time.process_time(), time.perf_counter()
    got = asyncio.run(load(url, num_streams, answers))
    wall = time.perf_counter() - start
    after, client = cpu_seconds(pid), time.process_time() - client
    engine, workers = after[0] - before[0], after[1] - before[1]
    tokens, ideal = sum(answer.tokens for answer in got), num_streams / step_seconds
    if tokens != (asked := num_streams * sum(lengths(0, answers))):
        raise SystemExit(f"{tokens} tokens came, not {asked}")
    first = 1e3 * median(answer.wait for answer in got)
    values = (
        num_streams, f"{tokens / wall:,.0f}", f"{ideal:,.0f}", f"{tokens / wall / ideal:.1%}", f"{first:.1f}",
        f"{1e6 * engine / tokens:.1f}", f"{1e6 * workers / tokens:.1f}", f"{1e6 * client / tokens:.1f}",
        f"{sum(answer.reads for answer in got) / tokens:.2f}",
    )  # fmt: skip
    return dict(zip(_COLUMNS, map(str, values), strict=True))


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Of a process, and of those that its threads have started."""
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(own[11]) + int(own[12])
    lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for shown in lists for child in shown.split()]
    return ticks / os.sysconf("SC_CLK_TCK"), sum(sum(cpu_seconds(child)) for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--answers", type=int, default=8, help="of each stream")
    args, serve = parser.parse_known_args()
    print("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|", flush=True)
    for num_streams in args.streams:
        step_seconds = args.step_ms / 1000
        command = [sys.executable, "-m", "benchmarks.front_end_server", str(step_seconds), str(num_streams)]
        with serving_process(serve, command) as (url, pid):
            row = measure(url, pid, num_streams, args.answers, step_seconds)
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
