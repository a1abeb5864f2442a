"""OpenAI's routes: /v1/completions, /v1/chat/completions and /v1/models."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from flask import Blueprint, Response

from xlaserve.engine.generations import Generations, collect
from xlaserve.server import sse
from xlaserve.server.http import check_model, json_response, liveness_check, read_json, server_state, tenant
from xlaserve.server.protocol.chat import ChatRequest, parse_chat
from xlaserve.server.protocol.completion import CompletionRequest, parse_completion
from xlaserve.server.render import ChatRenderer, CompletionRenderer
from xlaserve.server.responses import ModelCard, ModelList
from xlaserve.server.tokens import chat_ids, prompt_ids

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

routes = Blueprint("openai", __name__)


@routes.post("/v1/completions")
def completions() -> Response:
    with ExitStack() as stack:
        service = server_state().admit(stack)
        asked = parse_completion(read_json())
        check_model(asked.model, service.info)
        limit = service.info.max_model_len
        prompts = [prompt_ids(service.tokenizer, prompt, max_model_len=limit) for prompt in asked.prompt]
        renderer = CompletionRenderer(
            service.info.name,
            prompts,
            n=asked.n or 1,
            return_token_ids=asked.return_token_ids,
            include_usage=asked.include_usage,
            logprobs=asked.logprobs is not None,
        )
        return _answer(stack, service, asked, prompts, renderer)


@routes.post("/v1/chat/completions")
def chat_completions() -> Response:
    with ExitStack() as stack:
        service = server_state().admit(stack)
        asked = parse_chat(read_json())
        check_model(asked.model, service.info)
        prompts = [chat_ids(service.tokenizer, asked.messages, max_model_len=service.info.max_model_len)]
        renderer = ChatRenderer(
            service.info.name,
            prompts,
            n=asked.n or 1,
            return_token_ids=asked.return_token_ids,
            include_usage=asked.include_usage,
            logprobs=asked.logprobs,
        )
        return _answer(stack, service, asked, prompts, renderer)


def _answer(
    stack: ExitStack,
    service: "GenerationService",
    asked: CompletionRequest | ChatRequest,
    prompts: list[list[int]],
    renderer: CompletionRenderer | ChatRenderer,
) -> Response:
    """Generates and answers, whole or streamed. What `stack` holds is released when the answer has been sent."""
    params = asked.sampling_params(service.info.sampling_defaults)
    scheduling = asked.scheduling_params(tenant())
    generations = Generations(service, prompts, params, renderer.id, scheduling=scheduling, check=liveness_check())
    stack.callback(generations.abort)
    if not asked.stream:
        response = json_response(renderer.whole(collect(generations)))
    else:
        body = sse.stream(generations, renderer, include_usage=asked.include_usage)
        response = Response(body, mimetype="text/event-stream", headers=sse.HEADERS)
        # Not the generator's own `finally`: one that was never started runs none.
        response.call_on_close(stack.pop_all().close)
    response.headers["X-Request-Id"] = renderer.id
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
