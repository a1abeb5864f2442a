"""Random requests for every endpoint: fields of the protocol's models with right and with wrong values, and junk."""

import json
import random
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from benchmarks.fuzz_grammars import Grammars
from xlaserve.server import unsupported
from xlaserve.server.pooling.requests import EmbeddingRequest, RerankRequest, ScoreRequest
from xlaserve.server.protocol.batch import BatchRequest
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.protocol.completion import CompletionRequest
from xlaserve.server.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from xlaserve.server.responses_api.request import ResponsesRequest
from xlaserve.server.responses_api.unsupported import RESPONSES

JSON_TYPE = "application/json"
MAX_DEPTH = 6  # of a random value

_TEXTS = ["", "hi", "a b\n", "x" * 300, "日本🌶", "<s></s>", "\x00", "[[assistant]]", "stop"]
_COUNTS = [0, 1, 2, 3, 5, 8, 20]
_NUMBERS = [0, 0.0, 0.01, 0.5, 0.99, 1, 1.0, 1.5, 2, 10.0]
_WRONG: list[Any] = [
    None, True, False, -1, 0, 2**31, 2**63, -(2**70), 1e308, -0.5, "", "5", "x" * 5000, [], {}, [[]], [None], {"a": {}},
    [1, "a"], ["", ""], {"type": "x"}, [2**40], "../../etc/passwd", "\x00", [[[[[[[[]]]]]]]], {"": None},
]  # fmt: skip


@dataclass(frozen=True)
class Endpoint:
    path: str
    model: type[BaseModel]
    base: dict[str, Any]  # a request that is fine, but for `model`
    unsupported: dict[str, Any]


ENDPOINTS = [
    Endpoint("/v1/completions", CompletionRequest, {"prompt": "hi", "max_tokens": 4}, unsupported.COMPLETION),
    Endpoint(
        "/v1/chat/completions",
        ChatRequest,
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
        unsupported.CHAT,
    ),
    Endpoint("/v1/responses", ResponsesRequest, {"input": "hi", "max_output_tokens": 4}, RESPONSES),
    Endpoint("/v1/embeddings", EmbeddingRequest, {"input": "hi"}, {}),
    Endpoint("/v1/score", ScoreRequest, {"text_1": "hi", "text_2": ["a", "b"]}, {}),
    Endpoint("/v1/rerank", RerankRequest, {"query": "hi", "documents": ["a", "b"]}, {}),
    Endpoint("/tokenize", TokenizeRequest, {"prompt": "hi"}, {}),
    Endpoint("/detokenize", DetokenizeRequest, {"tokens": [1, 2, 3]}, {}),
    Endpoint("/v1/batches", BatchRequest, {"input_file_id": "file-" + "0" * 32, "endpoint": "/v1/completions"}, {}),
]
_WEIGHTS = [8, 8, 4, 2, 1, 1, 1, 1, 1]
_PATHS = ["/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/x", "/v1/files", "/v1/files/..", "/",
          "/v1/batches/batch_0", "/v1/responses/resp_0", "/v1/responses/x/input_items", "/v1/nothing",
          "/v1/completions/", "/%00", "/v1/models/%ff%fe"]  # fmt: skip
_METHODS = ["GET", "GET", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]


@dataclass(frozen=True)
class FuzzRequest:
    """kind: what it tries. leaves: the client reads so many bytes of the answer and goes; None: it reads all."""

    kind: str
    method: str
    path: str
    body: bytes
    content_type: str = JSON_TYPE
    leaves: int | None = None


class Generator:
    """The same sequence for the same seed."""

    def __init__(self, seed: int, model: str):
        self._random = random.Random(seed)
        self._grammars = Grammars(self._random)
        self._model = model
        self._schemas = {endpoint.path: endpoint.model.model_json_schema() for endpoint in ENDPOINTS}

    def next(self) -> FuzzRequest:
        chosen = self._random.random()
        if chosen < 0.05:
            method, path = self._random.choice(_METHODS), self._random.choice(_PATHS)
            return FuzzRequest("routes", method, path, b"" if method in ("GET", "HEAD") else self._junk(b"{}"))
        (endpoint,) = self._random.choices(ENDPOINTS, _WEIGHTS)
        fields = self._fields(endpoint)
        body = json.dumps(fields).encode()
        if chosen < 0.15:
            content_type = self._random.choice([JSON_TYPE] * 8 + ["text/plain", ""])
            return FuzzRequest("junk", "POST", endpoint.path, self._junk(body), content_type)
        leaves = self._random.choice([0, 1, 200, 1000]) if chosen < 0.25 else None
        return FuzzRequest("fields" if leaves is None else "leaves", "POST", endpoint.path, body, leaves=leaves)

    def _fields(self, endpoint: Endpoint) -> dict[str, Any]:
        schema = self._schemas[endpoint.path]
        fields = {"model": self._model} | endpoint.base
        for _ in range(self._random.choice([0, 1, 1, 2, 2, 3, 4, 6])):
            if endpoint.unsupported and self._random.random() < 0.1:
                fields[self._random.choice(sorted(endpoint.unsupported))] = self._random.choice(_WRONG)
                continue
            name = self._random.choice(sorted(schema["properties"]))
            if name in ("model", "max_tokens") and self._random.random() < 0.8:
                continue
            is_right = self._random.random() < 0.7
            if is_right and name in self._grammars.by_field and self._random.random() < 0.8:
                fields[name] = self._grammars.by_field[name]()
                continue
            field = schema["properties"][name]
            fields[name] = self._value(field, schema.get("$defs", {})) if is_right else self._random.choice(_WRONG)
        fields |= self._rules(endpoint)
        if self._random.random() < 0.3 and "stream" in schema["properties"]:
            fields["stream"] = True
        return fields

    def _rules(self, endpoint: Endpoint) -> dict[str, Any]:
        """Every fifth request has to keep to something, or has tools."""
        if not {"structured_outputs", "text"} & endpoint.model.model_fields.keys() or self._random.random() < 0.8:
            return {}
        if "messages" in endpoint.model.model_fields and self._random.random() < 0.4:
            return self._grammars.tools()
        name = self._random.choice(sorted(endpoint.model.model_fields.keys() & self._grammars.by_field.keys()))
        return {name: self._grammars.by_field[name]()}

    def _value(self, schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
        """A value that the schema allows, or nearly: ranges are looked at only at their lower end."""
        if "$ref" in schema:
            return self._value(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, depth)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._value(self._random.choice(schema[union]), definitions, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "array" and depth < MAX_DEPTH:
            items = schema.get("items", {})
            length = self._random.choice([schema.get("minItems", 0), 1, 2, 3])
            return [self._value(items, definitions, depth + 1) for _ in range(length)]
        if kind == "object" and depth < MAX_DEPTH:
            return self._object(schema, definitions, depth)
        if kind == "integer":
            return self._random.choice([schema.get("minimum", 0), *_COUNTS])
        simple = {"string": _TEXTS, "number": _NUMBERS, "boolean": [True, False], "null": [None]}
        return self._random.choice(simple.get(kind or "", _WRONG))

    def _object(self, schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        chosen = {
            name: self._value(field, definitions, depth + 1)
            for name, field in schema.get("properties", {}).items()
            if name in required or self._random.random() < 0.3
        }
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            chosen[self._random.choice(_TEXTS)] = self._value(more, definitions, depth + 1)
        return chosen

    def _junk(self, body: bytes) -> bytes:
        """`body` damaged, or nothing of the kind."""
        if self._random.random() < 0.2:
            return self._random.randbytes(self._random.choice([0, 1, 10, 2000]))
        if self._random.random() < 0.1:
            return self._random.choice(
                [b"[" * 20_000, b'{"a":' * 5000, b'{"a": 1e999}', b'{"a": NaN}', b"null", b"\xff"]
            )
        damaged = bytearray(body)
        for _ in range(self._random.randrange(1, 6)):
            at = self._random.randrange(len(damaged) + 1)
            damaged[at : at + self._random.randrange(4)] = self._random.randbytes(self._random.randrange(4))
        return bytes(damaged)
