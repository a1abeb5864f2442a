"""Batches as a plain client makes them and reads their results."""

import json

from tests.server.filing import as_tenant, content, uploaded
from tests.server.harness import JSON, Answer, LiveServer, wait_until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "hi"}]


def line(custom_id: str, url: str = COMPLETIONS, **body) -> dict:
    asked = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": MESSAGES}, EMBEDDINGS: {"input": "hi"}}[url]
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "toy"} | asked | body}


def jsonl(*lines: dict | bytes) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines)


def post(server: LiveServer, file_id: str, tenant: str | None = None, **fields) -> Answer:
    asked = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"} | fields
    return server.post("/v1/batches", asked, JSON | as_tenant(tenant))


def start(server: LiveServer, data: bytes, tenant: str | None = None, **fields) -> str:
    answer = post(server, uploaded(server, data, tenant=tenant), tenant, **fields)
    assert answer.status == 200, answer.body
    return answer.json["id"]


def look(server: LiveServer, batch_id: str, tenant: str | None = None) -> dict:
    return server.request("GET", f"/v1/batches/{batch_id}", headers=as_tenant(tenant)).json


def finished(server: LiveServer, batch_id: str, tenant: str | None = None, seconds: float = 20.0) -> dict:
    ends = ("completed", "failed", "cancelled", "expired")
    assert wait_until(lambda: look(server, batch_id, tenant)["status"] in ends, seconds), look(server, batch_id, tenant)
    return look(server, batch_id, tenant)


def results(server: LiveServer, batch: dict, kind: str = "output", tenant: str | None = None) -> dict[str, dict]:
    """By custom_id; none is there twice."""
    if batch[f"{kind}_file_id"] is None:
        return {}
    lines = [json.loads(text) for text in content(server, batch[f"{kind}_file_id"], tenant).splitlines()]
    assert all(set(one) == {"id", "custom_id", "response", "error"} for one in lines)
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found


def counts(batch: dict) -> tuple[int, int, int]:
    return tuple(batch["request_counts"][name] for name in ("total", "completed", "failed"))
