"""The routes beside OpenAI's: health, readiness, version, metrics, and vLLM's tokenize and detokenize."""

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST

import xlaserve
from xlaserve.errors import EngineUnavailable, InvalidRequest
from xlaserve.server.errors import error_reply
from xlaserve.server.http import json_response, model_named, read_json, server_state
from xlaserve.server.protocol.tokenization import parse_detokenize, parse_tokenize
from xlaserve.server.responses import DetokenizeReply, TokenizeReply
from xlaserve.server.tokens import chat_ids

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

routes = Blueprint("utility", __name__)


@routes.get("/health")
def health() -> Response:
    """200 while requests can be served or would be if a model were woken, else 503 in the error shape."""
    server_state().check_alive()
    return _json({"status": "ok"})


@routes.get("/ready")
def ready() -> Response:
    """200 while requests can be served. How far loading is; then the sizes of body there are, and what is missing."""
    state = server_state()
    try:
        state.check_health()
    except EngineUnavailable as error:
        reply = error_reply(error)
        response = _json(json.loads(reply.body) | state.detail(), reply.status)
        response.headers.update(reply.headers)
        return response
    return _json(state.detail())


@routes.get("/version")
def version() -> Response:
    return _json({"version": xlaserve.__version__})


@routes.get("/metrics")
def metrics() -> Response:
    """Prometheus text; 503 while loading."""
    return Response(server_state().loaded_models().render_metrics(), content_type=CONTENT_TYPE_LATEST)


@routes.post("/tokenize")
def tokenize() -> Response:
    with ExitStack() as stack:
        data, service = _admitted(stack)
        asked = parse_tokenize(data)
        tokenizer = service.tokenizer
        if asked.messages is not None:
            ids = chat_ids(
                tokenizer,
                asked.messages,
                add_generation_prompt=asked.add_generation_prompt,
                add_special_tokens=asked.add_special_tokens is True,
            )
        else:
            ids = tokenizer.encode(asked.prompt or "", add_special_tokens=asked.add_special_tokens is not False)
        token_strs = [tokenizer.token_text(token_id) for token_id in ids] if asked.return_token_strs else None
        return json_response(
            TokenizeReply(count=len(ids), max_model_len=service.info.max_model_len, tokens=ids, token_strs=token_strs)
        )


@routes.post("/detokenize")
def detokenize() -> Response:
    with ExitStack() as stack:
        data, service = _admitted(stack)
        asked = parse_detokenize(data)
        if max(asked.tokens, default=0) >= service.info.vocab_size:
            raise InvalidRequest(f"tokens must be ids below {service.info.vocab_size}.", param="tokens")
        return json_response(DetokenizeReply(prompt=service.tokenizer.decode(asked.tokens, skip_special_tokens=False)))


def _admitted(stack: ExitStack) -> "tuple[dict[str, Any], GenerationService]":
    """The body of a request that has got a place, and the service of its model."""
    state = server_state()
    state.admit(stack)
    data = read_json()
    return data, state.use(model_named(data), stack)


def _json(value: dict, status: int = 200) -> Response:
    return Response(json.dumps(value), status, mimetype="application/json")
