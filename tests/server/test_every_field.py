"""Every field of every request does what it is specified to do, or is known to do nothing; a wrong value is named.

The fields are those of the models in the OpenAPI document: a new one without an entry fails here.
"""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.batching import finished, jsonl, line, start
from tests.server.fields import admin, chat, generation, others, pooling, responses, structured, wrong
from tests.server.fields.said import Effect, Elsewhere, Entry, NoEffect, Said
from tests.server.fields.walk import fields
from tests.server.harness import JSON, Answer, LiveServer, served
from tests.server.tiny_server import tiny_server
from tests.server.toy_service import make_toy_service
from tests.toy_store import ToyStore
from xlaserve.server.admin_access import AdminAccess
from xlaserve.server.openapi import OPERATIONS

ADMIN_KEY = "sk-admin"
TEXT = "hi there, you model of twenty tokens"  # longer than a block of the cache
SAID = {"role": "user", "content": "hi"}


@dataclass(frozen=True)
class Fields:
    """Of one model: a request that is fine, what each field does, and what it must not be."""

    base: dict[str, Any]
    entries: dict[str, Entry]
    wrong: wrong.Wrong


_SHOWN = {"model": "toy", "temperature": 0, "max_tokens": 8, "return_token_ids": True}
_ENTRIES = {"model": others.MODEL} | generation.GENERATION | structured.STRUCTURED
MODELS = {
    "CompletionRequest": Fields(
        _SHOWN | {"prompt": TEXT}, _ENTRIES | others.COMPLETION, wrong.GENERATION | wrong.COMPLETION
    ),
    "ChatRequest": Fields(
        _SHOWN | {"messages": [{"role": "user", "content": TEXT}]},
        _ENTRIES | chat.CHAT,
        wrong.GENERATION | wrong.CHAT,
    ),
    "EmbeddingRequest": Fields({"model": "toy", "input": "hi"}, pooling.EMBEDDING, pooling.WRONG_EMBEDDING),
    "ScoreRequest": Fields({"model": "toy", "text_1": "hi", "text_2": "you"}, pooling.SCORE, pooling.WRONG_SCORE),
    "RerankRequest": Fields(
        {"model": "toy", "query": "hi", "documents": ["you", "there"]}, pooling.RERANK, pooling.WRONG_RERANK
    ),
    "TokenizeRequest": Fields({"prompt": "hi"}, others.TOKENIZE, wrong.TOKENIZE),
    "DetokenizeRequest": Fields({"tokens": [*b"hi"]}, others.DETOKENIZE, wrong.DETOKENIZE),
    "BatchRequest": Fields({"endpoint": "/v1/completions", "completion_window": "24h"}, others.BATCH, wrong.BATCH),
    "ResponsesRequest": Fields(
        {"model": "toy", "temperature": 0, "max_output_tokens": 8, "input": TEXT}, responses.RESPONSES, responses.WRONG
    ),
    "ResponseQuery": Fields({}, responses.RESPONSE_QUERY, responses.WRONG_RESPONSE_QUERY),
    "ItemsQuery": Fields({}, responses.ITEMS_QUERY, responses.WRONG_ITEMS_QUERY),
    "WeightsRequest": Fields({}, admin.WEIGHTS, admin.WRONG_WEIGHTS),
    "SleepQuery": Fields({}, admin.SLEEP, admin.WRONG_SLEEP),
    "WakeQuery": Fields({}, admin.WAKE, admin.WRONG_WAKE),
    "FilesQuery": Fields({}, others.FILES_QUERY, wrong.FILES_QUERY),
    "BatchesQuery": Fields({}, others.BATCHES_QUERY, wrong.BATCHES_QUERY),
}
ROUTES = {model: each for each in OPERATIONS for model in (each.request, each.query) if model}
WALKED: list[tuple[type[BaseModel], str]] = [(model, name) for model in ROUTES for name in fields(model)]
EACH = pytest.mark.parametrize(("model", "name"), WALKED, ids=[f"{model.__name__}-{name}" for model, name in WALKED])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, cache_dir):
    with tiny_server(tmp_path_factory.mktemp("model") / "tiny", cache_dir) as server:
        yield server


@pytest.fixture
def filed(keep) -> LiveServer:
    """Two files, and a batch over each."""
    server = keep()
    for number in range(2):
        finished(server, start(server, jsonl(line(str(number)))))
    return server


@pytest.fixture
def ordered(make_live, tmp_path) -> Iterator[LiveServer]:
    """It takes orders about two models."""
    for name in ("fine", "better"):
        (tmp_path / name).write_text("")
    server = make_live(make_store=ToyStore, admin_access=AdminAccess(ADMIN_KEY, [tmp_path]))
    server.weights = str(tmp_path / "fine")
    other, _ = make_toy_service(b"WORLD", name="other", make_store=ToyStore)
    server.state.set_ready(served(server.service, other))
    yield server
    assert other.shutdown(timeout=10)


class Asker:
    """Sends requests of one model."""

    def __init__(self, server: LiveServer, model: type[BaseModel], base: dict[str, Any]):
        self._server = server
        self._route = ROUTES[model]
        self._path = self._route.path.replace("{name}", "toy")
        self._headers = JSON | ({"Authorization": f"Bearer {ADMIN_KEY}"} if self._path.startswith("/admin/") else {})
        if "{response_id}" in self._path:
            response = server.post("/v1/responses", MODELS["ResponsesRequest"].base | {"input": [SAID, SAID]})
            self._path = self._path.format(response_id=response.json["id"])
        self._model = model
        self._base = base

    def send(self, more: dict[str, Any]) -> Answer:
        asked = {name: value for name, value in (self._base | more).items() if value is not None}
        if self._route.query is self._model:
            return self._request(f"{self._path}?{urllib.parse.urlencode(asked)}")
        return self._request(self._path, asked)

    def _request(self, path: str, body: dict[str, Any] | None = None) -> Answer:
        return self._server.request(self._route.method.upper(), path, body, self._headers)

    def __call__(self, **more: Any) -> Said:
        answer = self.send(more)
        assert answer.status == 200, answer.body
        return Said(answer)

    def get(self, path: str) -> Said:
        return Said(self._server.get(path))


def _known(model: type[BaseModel], name: str) -> Fields:
    known = MODELS.get(model.__name__)
    assert known, f"{model.__name__} is new: give it a base request, and its fields entries, in tests/server/fields"
    told = f"{model.__name__}.{name} is new: say in tests/server/fields what it does"
    assert name in known.entries, told
    assert known.wrong.get(name) is not None, f"{told}, and in wrong.py which values are refused"
    return known


def _base(model: type[BaseModel], name: str, server: LiveServer) -> dict[str, Any]:
    base = MODELS[model.__name__].base
    if model.__name__ == "BatchRequest":
        return base | {"input_file_id": server.get("/v1/files?purpose=batch").json["data"][0]["id"]}
    if model.__name__ == "WeightsRequest":
        return {"path": server.weights}
    if model.__name__ == "TokenizeRequest" and name.startswith("messages"):
        return MODELS["ChatRequest"].base | dict.fromkeys(_SHOWN)
    return base


@EACH
def test_a_field_does_what_it_says(model, name, request):
    entry = _known(model, name).entries[name]
    if isinstance(entry, Elsewhere):
        return
    top = name.partition(".")[0]
    if isinstance(entry, NoEffect):
        if entry.value is None:
            return
        entry = Effect(
            entry.value, lambda without, with_it, _: _alike(without) == _alike(with_it), {top: entry.without}
        )
    server = request.getfixturevalue(_server_of(model) or entry.server)
    ask = Asker(server, model, _base(model, name, server) | entry.base | _as_completions_have_it(model, entry.base))
    value = entry.value(ask) if callable(entry.value) else entry.value
    without, with_it = ask(), ask(**{top: value})
    assert entry.check(without, with_it, ask), (without.answer.body, with_it.answer.body)


def _server_of(model: type[BaseModel]) -> str | None:
    """The fixture, where the entries do not name it."""
    if ROUTES[model].path.startswith("/admin/"):
        return admin.ORDERED
    return "filed" if model.__name__.startswith(("Batch", "Files")) else None


def _as_completions_have_it(model: type[BaseModel], base: dict[str, Any]) -> dict[str, Any]:
    return {"logprobs": 0} if model.__name__ == "CompletionRequest" and "logprobs" in base else {}


def _alike(said: Said) -> Any:
    """The answer without what is of its moment."""
    return said.json if "choices" not in said.json else [said.texts, said.prompt_ids]


@EACH
def test_a_wrong_value_is_refused_by_name(model, name, request):
    known = _known(model, name)
    server = request.getfixturevalue(_server_of(model) or "tiny")
    ask = Asker(server, model, _base(model, name, server) | wrong.BESIDE.get(name, {}))
    top = name.partition(".")[0]
    for value in known.wrong[name]:
        answer = ask.send({top: value})
        assert (answer.status, answer.error["param"]) == (400, top), (value, answer.body)


def test_no_entry_is_of_a_field_that_is_gone():
    for model in ROUTES:
        names = {*fields(model)}
        if known := MODELS.get(model.__name__):
            assert not known.entries.keys() - names, model
            assert not known.wrong.keys() - names, model
