"""Uploads as a plain client sends them, and a server that keeps files."""

import uuid
from typing import Any

from tests.server.harness import Answer, LiveServer

TENANTS = {"alice": "sk-alice", "bob": "sk-bob"}


def form(fields: dict[str, str], files: list[tuple[str, str, bytes]]) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a multipart form; `files` are (field, filename, content)."""
    boundary = uuid.uuid4().hex
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    parts += [f'name="{name}"; filename="{filename}"\r\n\r\n'.encode() + data for name, filename, data in files]
    body = b"".join(f"--{boundary}\r\nContent-Disposition: form-data; ".encode() + part + b"\r\n" for part in parts)
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def as_tenant(name: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {TENANTS[name]}"} if name else {}


def upload(
    server: LiveServer, data: bytes, *, filename: str = "in.jsonl", purpose: str = "batch", tenant: str | None = None
) -> Answer:
    body, headers = form({"purpose": purpose}, [("file", filename, data)])
    return server.post("/v1/files", body, headers | as_tenant(tenant))


def uploaded(server: LiveServer, data: bytes, **options: Any) -> str:
    """The id of the new file."""
    answer = upload(server, data, **options)
    assert answer.status == 200, answer.body
    return answer.json["id"]


def content(server: LiveServer, file_id: str, tenant: str | None = None) -> bytes:
    answer = server.request("GET", f"/v1/files/{file_id}/content", headers=as_tenant(tenant))
    assert answer.status == 200, answer.body
    return answer.body
