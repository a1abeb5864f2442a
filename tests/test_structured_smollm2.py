"""A real model held to a JSON schema: it answers what was asked for, whether given tokens are sampled or not."""

import json

import jsonschema
import pytest

from tests.server.harness import served
from xlaserve.engine.llm import LLM
from xlaserve.grammar import Grammar
from xlaserve.sampling_params import SamplingParams
from xlaserve.server.app import create_app
from xlaserve.server.state import ServerState

pytestmark = pytest.mark.models
SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_city": {"type": "string", "minLength": 2, "maxLength": 20},
        "number_of_inhabitants": {"type": "integer", "minimum": 1000, "maximum": 50_000_000},
        "is_the_capital": {"type": "boolean"},
        "rivers": {"type": "array", "items": {"enum": ["Seine", "Thames", "Danube"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name_of_the_city", "number_of_inhabitants", "is_the_capital", "rivers"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def llm(demo_gguf, cache_dir):
    overrides = [
        "model.dtype=float32",
        "model.max_model_len=1024",
        "model.served_name=smol",
    ]  # programs of test_golden.py
    with LLM(str(demo_gguf), overrides=overrides, cache_dir=cache_dir) as llm:
        yield llm


def is_asked_for(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA, cls=jsonschema.Draft202012Validator)
    return True


def test_answers_validate_and_do_not_depend_on_how_given_tokens_come(llm):
    prompts = [f"Tell of {city} in JSON: " for city in ("Paris", "London", "Vienna", "Budapest")]
    asked = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 2, "top_p": 0.9}]
    prompts, asked = prompts * len(asked), [each for each in asked for _ in prompts]
    given, sampled = (
        llm.generate(prompts, [SamplingParams(max_tokens=100, grammar=GRAMMAR, **each, **more) for each in asked])
        for more in ({}, {"logprobs": 0})  # with logprobs each token is sampled
    )
    assert [each.token_ids for each in given] == [each.token_ids for each in sampled]
    assert sum(each.finish_reason == "stop" for each in given) >= 6
    assert all(is_asked_for(each.text) for each in given if each.finish_reason == "stop")
    assert len({each.text for each in given}) > 4


def test_over_http(llm):
    state = ServerState(max_requests=1, max_body=100_000)
    state.set_ready(served(llm.service))
    body = {
        "model": "smol",
        "messages": [{"role": "user", "content": "Tell of Paris in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}},
        "temperature": 0,
        "max_tokens": 100,
    }
    answer = create_app(state).test_client().post("/v1/chat/completions", json=body).get_json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert is_asked_for(answer["choices"][0]["message"]["content"])
    assert answer["usage"]["completion_tokens"] > 20
