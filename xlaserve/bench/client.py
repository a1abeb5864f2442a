"""Sends requests to a server that speaks OpenAI's API, and notes when each piece of each answer came.

Knows nothing of xlaserve, so that every server is measured alike. Needs aiohttp, from the extra `bench`.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from xlaserve.bench.server_process import ServerFailed
from xlaserve.bench.workload import Job

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_SILENCE_SECONDS = 600.0  # a server that sends nothing for so long has failed


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    endpoint: str = COMPLETIONS
    api_key: str | None = field(default=None, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict)  # further fields of each request

    def request(self, job: Job) -> dict[str, Any]:
        content = {"messages": [{"role": "user", "content": job.prompt}]} if self.is_chat else {"prompt": job.prompt}
        limit = "max_completion_tokens" if self.is_chat else "max_tokens"
        common = {"model": self.model, limit: job.output_tokens, "stream": True}
        return common | {"stream_options": {"include_usage": True}} | content | dict(self.body)

    @property
    def is_chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")


@dataclass
class Answer:
    """Times are of time.perf_counter(), in seconds."""

    job: Job
    sent: float
    pieces: list[float] = field(default_factory=list)  # when each piece of text came
    done: float = 0.0
    prompt_tokens: int = 0  # by the server's count
    output_tokens: int = 0
    error: str | None = None


async def model_of(url: str, api_key: str | None) -> str:
    """The first model that the server lists. Raises ServerFailed."""
    async with _session(api_key) as session:
        try:
            async with session.get(f"{url}/v1/models") as reply:
                if reply.status != 200:
                    raise ServerFailed(f"{url}/v1/models: {reply.status} {(await reply.text())[:200]}")
                return (await reply.json())["data"][0]["id"]
        except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as error:
            raise ServerFailed(
                f"{url}/v1/models: {error or type(error).__name__}; name the model by --model"
            ) from error


async def send_all(
    server: Server, jobs: Sequence[Job], *, max_concurrency: int | None, warmups: int, on_done: Callable[[], None]
) -> list[Answer]:
    """Each job when it arrives, unless `max_concurrency` are on their way: then as soon as one of them is done.

    The first job is sent `warmups` times before. Raises ServerFailed where that fails.
    """
    gate = asyncio.Semaphore(max_concurrency or len(jobs))
    async with _session(server.api_key) as session:
        for _ in range(warmups):
            answer = await _send(session, server, jobs[0])
            if answer.error:
                raise ServerFailed(f"{server.url}{server.endpoint}: the request to warm up failed: {answer.error}")
        start = time.perf_counter()

        async def worker(job: Job) -> Answer:
            await asyncio.sleep(max(0.0, start + job.arrival - time.perf_counter()))
            async with gate:
                answer = await _send(session, server, job)
            on_done()
            return answer

        return await asyncio.gather(*map(worker, jobs))


def send_at_once(server: Server, jobs: Sequence[Job]) -> list[str]:
    """All jobs together; returns the errors. For a process of its own."""
    answers = asyncio.run(send_all(server, jobs, max_concurrency=None, warmups=0, on_done=lambda: None))
    return [answer.error for answer in answers if answer.error]


def _session(api_key: str | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=_SILENCE_SECONDS),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
    )


async def _send(session: aiohttp.ClientSession, server: Server, job: Job) -> Answer:
    answer = Answer(job, time.perf_counter())
    try:
        async with session.post(server.url + server.endpoint, json=server.request(job)) as reply:
            if reply.status == 200:
                await _read(reply, answer)
            else:
                answer.error = f"{reply.status} {(await reply.text())[:200]}"
    except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as error:  # or it is no answer
        answer.error = f"{type(error).__name__}: {error}"
    answer.done = time.perf_counter()
    return answer


async def _read(reply: aiohttp.ClientResponse, answer: Answer) -> None:
    ended = False
    async for line in reply.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            continue
        event = json.loads(data)
        if "error" in event:
            answer.error = str(event["error"])[:200]
        if usage := event.get("usage"):
            answer.prompt_tokens, answer.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        if any(map(_has_text, event.get("choices") or ())):
            answer.pieces.append(time.perf_counter())
    if not ended:
        answer.error = answer.error or "the stream ended before [DONE]"
    answer.output_tokens = answer.output_tokens or len(answer.pieces)  # of a server that tells no usage


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))
