"""OpenAI's routes: /v1/completions, /v1/chat/completions and /v1/models."""

from flask import Blueprint, Response

from xlaserve.server.answering import answer
from xlaserve.server.http import check_model, json_response, server_state
from xlaserve.server.jobs import chat_job, completion_job
from xlaserve.server.responses import ModelCard, ModelList

routes = Blueprint("openai", __name__)


@routes.post("/v1/completions")
def completions() -> Response:
    return answer(completion_job)


@routes.post("/v1/chat/completions")
def chat_completions() -> Response:
    return answer(chat_job)


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
