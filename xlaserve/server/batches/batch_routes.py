"""OpenAI's routes of batches."""

from contextlib import ExitStack

from flask import Blueprint, Response

from xlaserve.server.batches.batch_store import Batch
from xlaserve.server.batches.file_routes import batches
from xlaserve.server.batches.replies import BatchReply, ErrorList, ErrorReply, RequestCounts, page
from xlaserve.server.http import json_response, query, read_json, server_state, tenant
from xlaserve.server.protocol.batch import parse_batch, parse_batches_query

routes = Blueprint("batches", __name__)


@routes.post("/v1/batches")
def create() -> Response:
    found = batches()
    with ExitStack() as stack:
        server_state().admit(stack)
        return json_response(_reply(found.create(parse_batch(read_json()), tenant())))


@routes.get("/v1/batches")
def list_batches() -> Response:
    asked = parse_batches_query(query())
    replies = [_reply(batch) for batch in batches().store.all_of(tenant())]
    return json_response(page(replies, limit=asked.limit, after=asked.after))


@routes.get("/v1/batches/<batch_id>")
def batch(batch_id: str) -> Response:
    return json_response(_reply(batches().store.get(batch_id, tenant())))


@routes.post("/v1/batches/<batch_id>/cancel")
def cancel(batch_id: str) -> Response:
    return json_response(_reply(batches().cancel(batch_id, tenant())))


def _reply(batch: Batch) -> BatchReply:
    progress = batches().runner.progress(batch.id)
    if progress is None:  # perhaps since a moment ago: its record tells
        batch = batches().store.get(batch.id, batch.tenant)
    completed, failed = progress or (batch.completed, batch.failed)
    errors = [ErrorReply(**error.model_dump()) for error in batch.errors]
    same = set(BatchReply.model_fields) & set(Batch.model_fields) - {"errors"}
    return BatchReply(
        object="batch",
        errors=ErrorList(object="list", data=errors) if errors else None,
        request_counts=RequestCounts(total=batch.total, completed=completed, failed=failed),
        **batch.model_dump(include=same),
    )
