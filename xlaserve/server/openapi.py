"""The OpenAPI 3.1 document of this server, generated from the models that check requests and write answers."""

import functools
import json
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import xlaserve
from xlaserve.server.batches import replies
from xlaserve.server.field_notes import DEFAULTS, DEFAULTS_OF, EXTENSIONS, OPENAI, POOLING, RESPONSES
from xlaserve.server.object_notes import EXTENDING, OBJECTS
from xlaserve.server.pooling.replies import EmbeddingReply, RerankReply, ScoreReply
from xlaserve.server.pooling.requests import EmbeddingRequest, RerankRequest, ScoreRequest
from xlaserve.server.protocol.batch import BatchesQuery, BatchRequest, FilesQuery, FileUpload
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.protocol.completion import CompletionRequest
from xlaserve.server.protocol.loading import LoadedReply
from xlaserve.server.protocol.sleeping import SleepQuery, SleepReply, WakeQuery
from xlaserve.server.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from xlaserve.server.protocol.weights import WeightsReply, WeightsRequest
from xlaserve.server.responses import (
    ChatChunk,
    ChatReply,
    CompletionReply,
    DetokenizeReply,
    ModelCard,
    ModelList,
    TokenizeReply,
)
from xlaserve.server.responses_api.replies import AnyItem, ResponseDeleted, ResponseReply, StreamEvent
from xlaserve.server.responses_api.request import ItemsQuery, ResponseQuery, ResponsesRequest

routes = Blueprint("openapi", __name__)


class Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every error, whatever its status."""

    error: Error


@dataclass(frozen=True)
class Operation:
    """One route. `reply` None: text or an object that has no fixed shape. `chunk`: of a stream's events.

    form: instead of `request`, the parts of a multipart/form-data body.
    """

    method: str
    path: str
    summary: str
    request: type[BaseModel] | None = None
    reply: type[BaseModel] | None = None
    chunk: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    form: type[BaseModel] | None = None
    content_type: str = "application/json"


OPERATIONS = (
    Operation("post", "/v1/completions", "Continue prompts", CompletionRequest, CompletionReply, CompletionReply),
    Operation("post", "/v1/chat/completions", "Answer a conversation", ChatRequest, ChatReply, ChatChunk),
    Operation(
        "post", "/v1/responses", "Answer a conversation, item by item", ResponsesRequest, ResponseReply, StreamEvent
    ),
    Operation(
        "get", "/v1/responses/{response_id}", "A response that is stored", reply=ResponseReply, query=ResponseQuery
    ),
    Operation("delete", "/v1/responses/{response_id}", "Forget a response", reply=ResponseDeleted),
    Operation(
        "get",
        "/v1/responses/{response_id}/input_items",
        "What led to a response, with all that came before it",
        reply=replies.Page[AnyItem],
        query=ItemsQuery,
    ),
    Operation("post", "/v1/responses/{response_id}/cancel", "Refused: no response runs in the background"),
    Operation("post", "/v1/embeddings", "Texts to vectors", EmbeddingRequest, EmbeddingReply),
    Operation("post", "/v1/score", "How alike two texts are", ScoreRequest, ScoreReply),
    Operation("post", "/v1/rerank", "Documents in the order of their likeness to a query", RerankRequest, RerankReply),
    Operation("get", "/v1/models", "The model served", reply=ModelList),
    Operation("get", "/v1/models/{name}", "The model served, by its name", reply=ModelCard),
    Operation("post", "/tokenize", "Text or messages to token ids", TokenizeRequest, TokenizeReply),
    Operation("post", "/detokenize", "Token ids to text", DetokenizeRequest, DetokenizeReply),
    Operation("post", "/v1/files", "Upload a file, as multipart/form-data", reply=replies.FileReply, form=FileUpload),
    Operation("get", "/v1/files", "List files", reply=replies.Page[replies.FileReply], query=FilesQuery),
    Operation("get", "/v1/files/{file_id}", "What is known of a file", reply=replies.FileReply),
    Operation("get", "/v1/files/{file_id}/content", "A file itself", content_type="application/octet-stream"),
    Operation("delete", "/v1/files/{file_id}", "Delete a file", reply=replies.FileDeleted),
    Operation("post", "/v1/batches", "Run a file of requests in the background", BatchRequest, replies.BatchReply),
    Operation("get", "/v1/batches", "List batches", reply=replies.Page[replies.BatchReply], query=BatchesQuery),
    Operation("get", "/v1/batches/{batch_id}", "How far a batch has come", reply=replies.BatchReply),
    Operation("post", "/v1/batches/{batch_id}/cancel", "Stop a batch", reply=replies.BatchReply),
    Operation("post", "/admin/models/{name}/weights", "Replace the model's weights", WeightsRequest, WeightsReply),
    Operation("post", "/admin/models/{name}/load", "Load a model that is on demand", reply=LoadedReply),
    Operation("post", "/admin/models/{name}/unload", "Free the memory of a model on demand", reply=LoadedReply),
    Operation("post", "/admin/sleep", "Free the device's memory until a wake", reply=SleepReply, query=SleepQuery),
    Operation("post", "/admin/wake", "Take up the weights again", reply=SleepReply, query=WakeQuery),
    Operation("get", "/health", "200 while the server works, also with a model that sleeps"),
    Operation("get", "/ready", "200 while requests can be served, with how far loading has come"),
    Operation("get", "/version", "The server's version"),
    Operation("get", "/metrics", "Prometheus metrics", content_type="text/plain"),
    Operation("get", "/openapi.json", "This document"),
    Operation("get", "/docs", "The same as a page", content_type="text/html"),
)


@routes.get("/openapi.json")
def openapi() -> Response:
    return Response(json.dumps(document()), mimetype="application/json")


_TEXT = OPENAI | EXTENSIONS
NOTES = {
    **dict.fromkeys(("CompletionRequest", "ChatRequest"), _TEXT),
    "ResponsesRequest": _TEXT | RESPONSES,
    **dict.fromkeys(("EmbeddingRequest", "ScoreRequest", "RerankRequest"), _TEXT | POOLING),
    **OBJECTS,
}


@functools.cache
def document() -> dict[str, Any]:
    asked = {model for each in OPERATIONS for model in (each.request, each.query, each.form) if model}
    told = {model for each in OPERATIONS for model in (each.reply, each.chunk) if model} | {ErrorBody}
    names, definitions = models_json_schema(
        [
            *((model, "validation") for model in sorted(asked, key=lambda model: model.__name__)),
            *((model, "serialization") for model in sorted(told, key=lambda model: model.__name__)),
        ],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {model: schema for (model, _), schema in names.items()}
    components = definitions["$defs"]
    for name, fields in components.items():
        if name in NOTES:
            _describe(name, fields["properties"])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "xlaserve", "version": xlaserve.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _describe(model: str, properties: dict[str, Any]) -> None:
    """x-default: in words, where the field's own default is null."""
    defaults = ({} if model in OBJECTS else DEFAULTS) | DEFAULTS_OF.get(model, {})
    for name, schema in properties.items():
        schema["description"] = NOTES[model].get(name, "")
        schema["x-extension"] = model in EXTENDING or (model not in OBJECTS and name in EXTENSIONS)
        if schema.get("default") is None and name in defaults:
            schema["x-default"] = defaults[name]


def _operation(operation: Operation, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {operation.content_type: {}}
    if operation.reply:
        content = {"application/json": {"schema": schemas[operation.reply]}}
    if operation.chunk:
        content["text/event-stream"] = {"schema": _event(operation.chunk, schemas)}
    error = {"description": "An error", "content": {"application/json": {"schema": schemas[ErrorBody]}}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": {"description": "OK", "content": content}, "4XX": error, "5XX": error},
    }
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if operation.query:
        fields = components[operation.query.__name__]["properties"]
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]
    if parameters:
        described["parameters"] = parameters
    if body := operation.request or operation.form:
        kind = "application/json" if operation.request else "multipart/form-data"
        described["requestBody"] = {"required": True, "content": {kind: {"schema": schemas[body]}}}
    return described


def _event(chunk: type[BaseModel], schemas: dict[Any, Any]) -> dict[str, Any]:
    """Of a server-sent event: OpenAPI before 3.2 has no word for a stream, so this is of each event in it."""
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json", "contentSchema": schemas[chunk]}
    if chunk is not StreamEvent:  # whose own events tell of an error, and of the end
        data["contentSchema"] = {"anyOf": [schemas[chunk], schemas[ErrorBody]]}
        data = {"anyOf": [data, {"const": "[DONE]"}]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
