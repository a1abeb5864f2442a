"""OpenAI's routes: /v1/completions, /v1/chat/completions and /v1/models."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response

from xlaserve.server import sse
from xlaserve.server.http import (
    check_model,
    client_request_id,
    json_response,
    liveness_check,
    read_json,
    server_state,
    tenant,
)
from xlaserve.server.jobs import Job, chat_job, completion_job
from xlaserve.server.responses import ModelCard, ModelList

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

routes = Blueprint("openai", __name__)


@routes.post("/v1/completions")
def completions() -> Response:
    return _answer(completion_job)


@routes.post("/v1/chat/completions")
def chat_completions() -> Response:
    return _answer(chat_job)


def _answer(make_job: "Callable[[GenerationService, dict[str, Any]], Job]") -> Response:
    """Generates and answers, whole or streamed. The request keeps its place until the answer has been sent."""
    with ExitStack() as stack:
        service = server_state().admit(stack)
        job = make_job(service, read_json())
        scheduling, check = job.asked.scheduling_params(tenant()), liveness_check()
        if not job.asked.stream:
            response = json_response(job.whole(service, scheduling, check))
        else:
            generations = job.start(service, scheduling, check)
            stack.callback(generations.abort)
            body = sse.stream(generations, job.renderer, include_usage=job.asked.include_usage)
            response = Response(body, mimetype="text/event-stream", headers=sse.HEADERS)
            # Not the generator's own `finally`: one that was never started runs none.
            response.call_on_close(stack.pop_all().close)
        response.headers["X-Request-Id"] = job.asked.request_id or client_request_id() or job.renderer.id
        return response


@routes.get("/v1/models")
def models() -> Response:
    return json_response(ModelList(object="list", data=[_model_card()]))


@routes.get("/v1/models/<path:name>")
def model(name: str) -> Response:
    card = _model_card()
    check_model(name, server_state().service().info)
    return json_response(card)


def _model_card() -> ModelCard:
    info = server_state().service().info
    return ModelCard(
        id=info.name, object="model", created=info.created, owned_by="xlaserve", max_model_len=info.max_model_len
    )
