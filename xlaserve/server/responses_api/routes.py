"""OpenAI's routes of responses."""

from typing import cast

from flask import Blueprint, Response, current_app
from pydantic import TypeAdapter

from xlaserve.errors import InvalidRequest
from xlaserve.server.answering import answer
from xlaserve.server.batches.replies import page
from xlaserve.server.http import json_response, query, tenant
from xlaserve.server.responses_api.job import responses_job
from xlaserve.server.responses_api.replies import AnyItem, ResponseDeleted
from xlaserve.server.responses_api.request import parse_items_query, parse_response_query
from xlaserve.server.responses_api.store import ResponseStore

RESPONSES = "xlaserve-responses"  # key in app.extensions

routes = Blueprint("responses", __name__)

_items = TypeAdapter(list[AnyItem])


def _store() -> ResponseStore:
    return cast(ResponseStore, current_app.extensions[RESPONSES])


@routes.post("/v1/responses")
def create() -> Response:
    store, whose = _store(), tenant()
    return answer(lambda service, data: responses_job(service, data, store, whose))


@routes.get("/v1/responses/<response_id>")
def response(response_id: str) -> Response:
    parse_response_query(query())
    return Response(_store().get(response_id, tenant=tenant()).response, mimetype="application/json")


@routes.delete("/v1/responses/<response_id>")
def delete(response_id: str) -> Response:
    _store().delete(response_id, tenant=tenant())
    return json_response(ResponseDeleted(id=response_id, object="response", deleted=True))


@routes.get("/v1/responses/<response_id>/input_items")
def input_items(response_id: str) -> Response:
    asked = parse_items_query(query())
    items = _items.validate_python(_store().get(response_id, tenant=tenant()).items)
    newest_first = asked.order == "desc"
    return json_response(page(items[::-1] if newest_first else items, limit=asked.limit, after=asked.after))


@routes.post("/v1/responses/<response_id>/cancel")
def cancel(response_id: str) -> Response:
    """What is stored has ended, and nothing runs in the background."""
    _store().get(response_id, tenant=tenant())
    message = "Only responses created with background=true can be cancelled; this server refuses those."
    raise InvalidRequest(message, param="response_id")
