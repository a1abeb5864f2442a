"""The OpenAPI document has every route and every field, and what it says holds for what the server answers."""

import re
from pathlib import Path

import jsonschema
import pytest

from tests.server.responding import TOOLS, ask, stream
from tests.server.test_tools import TWO_CALLS
from xlaserve.server.api_docs import markdown, objects
from xlaserve.server.app import create_app
from xlaserve.server.field_notes import EXTENSIONS, OPENAI, RESPONSES
from xlaserve.server.object_notes import OBJECTS
from xlaserve.server.openapi import NOTES, OPERATIONS, document
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.protocol.completion import CompletionRequest
from xlaserve.server.responses_api.request import ResponsesRequest
from xlaserve.server.responses_api.unsupported import RESPONSES as REFUSED
from xlaserve.server.state import ServerState
from xlaserve.server.unsupported import CHAT, COMPLETION


def valid(value, name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_every_route_is_in_the_document_and_nothing_else():
    rules = create_app(ServerState(max_requests=1, max_body=1)).url_map.iter_rules()
    served = {
        (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in rules
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    told = {(method, path) for path, operations in document()["paths"].items() for method in operations}
    assert told == served


def test_every_field_is_described_once_and_none_is_refused_too():
    fields = {*CompletionRequest.model_fields, *ChatRequest.model_fields}
    assert fields == {*OPENAI, *EXTENSIONS}
    assert ResponsesRequest.model_fields.keys() - fields < RESPONSES.keys() <= ResponsesRequest.model_fields.keys()
    assert not (OPENAI | RESPONSES).keys() & EXTENSIONS.keys()
    assert not CompletionRequest.model_fields.keys() & COMPLETION.keys()
    assert not ChatRequest.model_fields.keys() & CHAT.keys()
    assert not ResponsesRequest.model_fields.keys() & REFUSED.keys()


def test_every_object_of_a_request_is_described():
    components = document()["components"]["schemas"]
    asked = {model.__name__ for each in OPERATIONS for model in (each.request, each.query, each.form) if model}
    for name in {*asked, *(each for model in asked for each in objects(components[model], components))}:
        assert name in NOTES
        assert all(field["description"] for field in components[name]["properties"].values()), name
    assert all(notes.keys() == components[name]["properties"].keys() for name, notes in OBJECTS.items())


@pytest.mark.parametrize(
    "name",
    ["CompletionRequest", "ChatRequest", "TokenizeRequest", "BatchRequest", "ResponsesRequest", "EmbeddingRequest"],
)
def test_requests_take_no_other_field(name):
    assert document()["components"]["schemas"][name]["additionalProperties"] is False


def test_answers_are_what_the_document_says(live):
    assert live.get("/openapi.json").json == document()
    valid({"model": "toy", "prompt": "hi", "stop": "x", "logit_bias": {"5": 1}}, "CompletionRequest")
    for prompt in (["a", "b"], [1, 2], [[1], [2]]):
        valid({"model": "toy", "prompt": prompt}, "CompletionRequest")
    parts = [{"type": "text", "text": "a"}]
    valid({"model": "toy", "messages": [{"role": "user", "content": parts}]}, "ChatRequest")
    valid(live.complete(logprobs=1, return_timings=True).json, "CompletionReply")
    valid(live.chat(logprobs=True, top_logprobs=1, return_token_ids=True).json, "ChatReply")
    for event in live.chat(stream=True, stream_options={"include_usage": True}).events:
        valid(event, "ChatChunk")
    valid(live.get("/v1/models").json, "ModelList")
    valid(live.complete(n=0).json, "ErrorBody")


def test_responses_are_what_the_document_says(responding):
    server = responding(b"<think>Hm.</think>I look." + TWO_CALLS, thinks=True)
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "b"}]}]
    for asked in ("hi", items):
        valid({"model": "toy", "input": asked}, "ResponsesRequest")
    response = ask(server, input=items, tools=TOOLS)
    valid(response, "ResponseReply")
    for event in stream(server, tools=TOOLS):
        valid(event, "StreamEvent")
    path = f"/v1/responses/{response['id']}"
    listed = document()["paths"]["/v1/responses/{response_id}/input_items"]["get"]["responses"]["200"]["content"]
    valid(server.get(f"{path}/input_items").json, listed["application/json"]["schema"]["$ref"].rpartition("/")[2])
    valid(server.request("DELETE", path).json, "ResponseDeleted")


def test_the_page_of_the_api_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "api.md"
    assert page.read_text() == markdown(), "python -m xlaserve.server.api_docs > docs/api.md"
