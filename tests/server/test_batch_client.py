"""The official client's files and batches, and every object parsed strictly as its own types."""

import json

import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject

from tests.server.batching import COMPLETIONS, finished, jsonl, line
from tests.server.filing import upload


@pytest.fixture
def server(keep):
    return keep()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_batch_from_upload_to_results(server, client, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_bytes(jsonl(line("a"), line("b"), line("wrong", n=0)))
    file = client.files.create(file=path, purpose="batch")
    assert (file.filename, file.bytes) == ("requests.jsonl", path.stat().st_size)
    batch = client.batches.create(
        input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h", metadata={"for": "test"}
    )
    finished(server, batch.id)
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 2, {"for": "test"})
    lines = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in lines} == dict.fromkeys(
        "ab", "hello"
    )
    (error,) = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(error)["response"]["body"]["error"]["param"] == "n"
    assert [one.id for one in client.batches.list()] == [batch.id]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError, match="completed"):
        client.batches.cancel(batch.id)


def test_lists_are_paged_through(client):
    files = [client.files.create(file=("a.jsonl", jsonl(line("a"))), purpose="batch") for _ in range(5)]
    batches = [
        client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h") for file in files
    ]
    assert [batch.id for batch in client.batches.list(limit=2)] == [batch.id for batch in batches[::-1]]
    listed = [file.id for file in client.files.list(limit=2, order="asc", purpose="batch")]
    assert listed == [file.id for file in files]


def test_a_failed_batch_tells_its_errors(server, client):
    file = client.files.create(file=("a.jsonl", b"x"), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    finished(server, batch.id)
    errors = client.batches.retrieve(batch.id).errors
    assert [(error.line, error.code) for error in errors.data] == [(1, "invalid_json_line")]


def test_objects_parse_strictly(server):
    shown = upload(server, jsonl(line("a"), line("wrong", n=0)))
    strictly(FileObject, shown.body)
    asked = {"input_file_id": shown.json["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    created = server.post("/v1/batches", asked)
    strictly(Batch, created.body)
    finished(server, created.json["id"])
    strictly(Batch, server.get(f"/v1/batches/{created.json['id']}").body)
    broken = asked | {"input_file_id": upload(server, b"x").json["id"]}
    failed = server.post("/v1/batches", broken).json["id"]
    finished(server, failed)
    strictly(Batch, server.get(f"/v1/batches/{failed}").body)
    strictly(FileDeleted, server.request("DELETE", f"/v1/files/{shown.json['id']}").body)


def strictly(model, body) -> None:
    model.model_validate_json(body, strict=True)
