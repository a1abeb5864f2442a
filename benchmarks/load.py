"""Closed-loop load on any OpenAI-compatible server: tokens/s, time to first token, time between tokens.

    python benchmarks/load.py --url http://127.0.0.1:8000 --model demo -n 34 -c 16 # 128 words in, 64 tokens out
    python benchmarks/load.py --url http://127.0.0.1:8000 --model demo -n 48 -c 16 --mixed # log-normal lengths

Prints one JSON line. Knows nothing of xlaserve, so that every server is measured alike. Needs aiohttp.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

_TEXT = """
the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no most
number who over know water than call first people may down side been now find
"""
WORDS = _TEXT.split()


@dataclass(frozen=True)
class Load:
    """What is sent: the same `seed` sends the same prompts and lengths."""

    num_requests: int = 34
    concurrency: int = 16
    prompt_words: int = 128
    max_tokens: int = 64
    mixed: bool = False  # log-normal lengths in place of the two above
    shared_words: int = 0  # the same ones in front of every prompt, the request to warm up included
    seed: int = 0

    @property
    def prefix(self) -> str:
        return "".join(word + " " for word in random.Random(-1 - self.seed).choices(WORDS, k=self.shared_words))

    def jobs(self) -> Iterator[tuple[str, int]]:
        """(prompt, tokens to generate) of each request."""
        rng = random.Random(self.seed)
        for _ in range(self.num_requests):
            num_words, max_tokens = self.prompt_words, self.max_tokens
            if self.mixed:
                num_words = int(min(1024, max(8, rng.lognormvariate(4.6, 0.9))))
                max_tokens = int(min(256, max(4, rng.lognormvariate(4.2, 0.8))))
            yield self.prefix + " ".join(rng.choice(WORDS) for _ in range(num_words)), max_tokens


@dataclass
class Answer:
    asked: int  # tokens
    tokens: int = 0  # by the server's own count
    ttft: float | None = None  # seconds
    itl: float | None = None  # seconds, mean of this answer
    error: str | None = None


async def run(url: str, model: str, load: Load) -> dict[str, Any]:
    """Sends the load, after one request to warm up, and returns what came of it."""
    gate = asyncio.Semaphore(load.concurrency)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=3600)) as session:
        await _request(session, url, model, load.prefix + "warm up", 4)

        async def worker(prompt: str, max_tokens: int) -> Answer:
            async with gate:
                return await _request(session, url, model, prompt, max_tokens)

        start = time.perf_counter()
        answers = await asyncio.gather(*(worker(*job) for job in load.jobs()))
        wall = time.perf_counter() - start
    return _summary(load, answers, wall)


async def _request(session: aiohttp.ClientSession, url: str, model: str, prompt: str, max_tokens: int) -> Answer:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(max_tokens)
    start, first, last = time.perf_counter(), None, None
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        if reply.status != 200:
            answer.error = f"{reply.status} {(await reply.text())[:200]}"
            return answer
        async for line in reply.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]
            if event.get("choices") and event["choices"][0].get("text"):
                last = time.perf_counter()
                first = first or last
    if first and last:
        answer.ttft, answer.itl = first - start, (last - first) / max(1, answer.tokens - 1)
    return answer


def _summary(load: Load, answers: list[Answer], wall: float) -> dict[str, Any]:
    good = [answer for answer in answers if answer.error is None]
    total = sum(answer.tokens for answer in good)
    ttft, itl = [answer.ttft for answer in good if answer.ttft], [answer.itl for answer in good if answer.itl]
    return {
        "concurrency": load.concurrency,
        "ok": len(good),
        "requests": load.num_requests,
        "output_tokens": total,
        "wall_s": round(wall, 2),
        "tokens_per_s": round(total / wall, 1),
        "ttft_p50_ms": round(_quantile(ttft, 0.5) * 1e3, 1),
        "ttft_p99_ms": round(_quantile(ttft, 0.99) * 1e3, 1),
        "itl_p50_ms": round(_quantile(itl, 0.5) * 1e3, 1),
        "short": sum(answer.tokens != answer.asked for answer in good),  # ended before they had all tokens
        "errors": sorted({answer.error for answer in answers if answer.error is not None})[:3],
    }


def _quantile(values: list[float], q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="m")
    parser.add_argument("-n", type=int, default=Load.num_requests, help="requests")
    parser.add_argument("-c", type=int, default=Load.concurrency, help="concurrent requests")
    parser.add_argument("--prompt-words", type=int, default=Load.prompt_words)
    parser.add_argument("--max-tokens", type=int, default=Load.max_tokens)
    parser.add_argument("--mixed", action="store_true", help="log-normal prompt and output lengths")
    parser.add_argument("--shared-words", type=int, default=0, help="in front of every prompt")
    parser.add_argument("--seed", type=int, default=Load.seed)
    args = parser.parse_args()
    load = Load(args.n, args.c, args.prompt_words, args.max_tokens, args.mixed, args.shared_words, args.seed)
    print(json.dumps(asyncio.run(run(args.url, args.model, load))))


if __name__ == "__main__":
    main()
