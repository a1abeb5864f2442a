"""OpenAI's routes: /v1/completions, /v1/chat/completions and /v1/models."""

from typing import TYPE_CHECKING

from flask import Blueprint, Response

from xlaserve.server.answering import answer
from xlaserve.server.http import json_response, server_state
from xlaserve.server.jobs import chat_job, completion_job
from xlaserve.server.responses import ModelCard, ModelList

if TYPE_CHECKING:
    from xlaserve.engine.served_models import Slot

routes = Blueprint("openai", __name__)


@routes.post("/v1/completions")
def completions() -> Response:
    return answer(completion_job)


@routes.post("/v1/chat/completions")
def chat_completions() -> Response:
    return answer(chat_job)


@routes.get("/v1/models")
def models() -> Response:
    return json_response(ModelList(object="list", data=list(map(_model_card, server_state().models().slots))))


@routes.get("/v1/models/<path:name>")
def model(name: str) -> Response:
    return json_response(_model_card(server_state().models().slot(name)))


def _model_card(slot: "Slot") -> ModelCard:
    card = ModelCard(id=slot.name, object="model", created=0, owned_by="xlaserve", max_model_len=None)
    if slot.service is None:  # on demand: more is known once it is loaded
        return card
    info = slot.service.info
    return card.model_copy(update={"created": info.created, "max_model_len": info.max_model_len})
