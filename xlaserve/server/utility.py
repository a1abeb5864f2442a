"""The routes beside OpenAI's: health, readiness, version, metrics, and vLLM's tokenize and detokenize."""

import json
from contextlib import ExitStack

from flask import Blueprint, Response

import xlaserve
from xlaserve.errors import EngineUnavailable, InvalidRequest
from xlaserve.server.errors import error_reply
from xlaserve.server.http import check_model, json_response, read_json, server_state
from xlaserve.server.protocol.tokenization import parse_detokenize, parse_tokenize
from xlaserve.server.responses import DetokenizeReply, TokenizeReply
from xlaserve.server.tokens import chat_ids

routes = Blueprint("utility", __name__)


@routes.get("/health")
def health() -> Response:
    """200 while requests can be served, else 503 in the error shape."""
    server_state().service()
    return _json({"status": "ok"})


@routes.get("/ready")
def ready() -> Response:
    """The same, with detail: how far loading has come."""
    state = server_state()
    try:
        state.service()
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
    found = server_state().metrics
    if found is None:
        raise EngineUnavailable("The model is still loading: see /ready.")
    return Response(found.render(), content_type=found.content_type)


@routes.post("/tokenize")
def tokenize() -> Response:
    with ExitStack() as stack:
        service = server_state().admit(stack)
        asked = parse_tokenize(read_json())
        check_model(asked.model, service.info)
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
        service = server_state().admit(stack)
        asked = parse_detokenize(read_json())
        check_model(asked.model, service.info)
        if max(asked.tokens, default=0) >= service.info.vocab_size:
            raise InvalidRequest(f"tokens must be ids below {service.info.vocab_size}.", param="tokens")
        return json_response(DetokenizeReply(prompt=service.tokenizer.decode(asked.tokens, skip_special_tokens=False)))


def _json(value: dict, status: int = 200) -> Response:
    return Response(json.dumps(value), status, mimetype="application/json")
