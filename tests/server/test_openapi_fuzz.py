"""Requests made from the OpenAPI document, right and wrong ones: no fault of the server's, every error in one shape.

What breaks the document's own rules must be refused; what is answered must be as the document says.
"""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.harness import Answer, LiveServer
from xlaserve.server.openapi import document

OPERATIONS = {
    result.ok().label: result.ok() for result in schemathesis.openapi.from_dict(document()).get_all_operations()
}
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
EXAMPLES = 15
SHORT = {"model": "toy", "max_tokens": 8}
BASES: dict[str, dict[str, Any]] = {  # requests that are fine: what is drawn would hardly ever be
    "POST /v1/completions": SHORT | {"prompt": "hi"},
    "POST /v1/chat/completions": SHORT | {"messages": [{"role": "user", "content": "hi"}]},
    "POST /v1/responses": {"model": "toy", "max_output_tokens": 8, "input": "hi"},
    "POST /tokenize": {"prompt": "hi"},
}


@st.composite
def cases(draw, operation):
    """(a case, whether its body breaks the document's rules): as drawn, or a few of its fields in a fine request."""
    mode = draw(st.sampled_from(GenerationMode))
    case = draw(operation.as_strategy(mode))
    if not isinstance(case.body, dict):
        return case, mode.is_negative
    if operation.label in BASES and draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(sorted(case.body)), max_size=3)) if case.body else ()
        case.body = BASES[operation.label] | {name: case.body[name] for name in names}
        return case, False
    if isinstance(case.body.get("model"), str):
        case.body["model"] = "toy"  # with any other name the rest would not be looked at
    # null is the same as absent, whatever the field; schemathesis takes it for a wrong value
    return case, mode.is_negative and None not in case.body.values()


def check_operation(server: LiveServer, operation: Any, examples: int) -> None:
    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(drawn=cases(operation))
    def fuzz(drawn):
        case, is_wrong = drawn
        response = case.call(base_url=server.url, timeout=10)
        status = response.status_code
        assert status < 500 or (status == 504 and case.body.get("timeout")), response.content
        if status >= 400:
            headers = {"Content-Type": response.headers["content-type"][0]}
            assert Answer(status, headers, response.content).error
        case.validate_response(response, checks=[*CHECKS, negative_data_rejection] if is_wrong else CHECKS)

    fuzz()


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_no_request_finds_a_fault(keep, label):
    server = keep()
    free = server.service.free_blocks()
    check_operation(server, OPERATIONS[label], EXAMPLES)
    assert server.complete().json["choices"][0]["text"] == "hello"
    assert server.service.free_blocks() == free


@pytest.mark.parametrize("label", [label for label in BASES if label != "POST /tokenize"])
def test_streams_are_as_the_document_says(live, label):
    case = OPERATIONS[label].Case(body=BASES[label] | {"stream": True}, media_type="application/json")
    response = case.call(base_url=live.url, timeout=10)
    assert response.headers["content-type"][0].startswith("text/event-stream")
    case.validate_response(response, checks=CHECKS)
    response = case.call(base_url=live.url, timeout=10)
    response.content = response.content.replace(b'"object":', b'"subject":').replace(b'"delta":', b'"epsilon":')
    with pytest.raises(FailureGroup, match="SSE event"):
        case.validate_response(response, checks=CHECKS)
