"""The fields of POST /v1/responses: what reaches the model, what is told again, and what is refused by name."""

import json

import pytest

from tests import toys
from tests.server.responding import TOOLS, ask, both, prompt, refused
from tests.server.test_tools import CITIES, TEMPLATE
from xlaserve.sampling_params import SamplingParams
from xlaserve.server.jobs import chat_job
from xlaserve.server.protocol.generation import TextRequest
from xlaserve.server.responses_api.job import responses_job
from xlaserve.server.responses_api.request import ResponsesRequest
from xlaserve.server.responses_api.store import ResponseStore
from xlaserve.server.responses_api.unsupported import RESPONSES

EFFORTS = TEMPLATE + "{{ reasoning_effort }}|"
SHOWING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}|{{ m.content }}|"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}[assistant]"
)
SAMPLING = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "presence_penalty": 1, "frequency_penalty": 1,
    "repetition_penalty": 2, "logit_bias": {"5": 1}, "allowed_token_ids": [1, 2], "bad_words": "x", "min_tokens": 2,
    "seed": 3, "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": True, "skip_special_tokens": False,
    "spaces_between_special_tokens": False, "include_stop_str_in_output": True,
    "structured_outputs": {"json": {"type": "object"}}, "thinking_token_budget": 7,
}  # fmt: skip


@pytest.mark.parametrize("field", SAMPLING)
def test_sampling_is_that_of_a_chat(responding, field):
    service = responding(thinks=True).service
    messages = [{"role": "user", "content": "hi"}]

    def params(**fields):
        ours = responses_job(service, {"model": "toy", "input": "hi"} | fields, ResponseStore(), "")
        chat = chat_job(service, {"model": "toy", "messages": messages} | fields)
        assert ours.params == chat.params
        assert ours.prompts == chat.prompts
        return ours.params

    assert params(**{field: SAMPLING[field]}) != params()


def test_scheduling_is_that_of_a_chat(responding):
    service = responding().service
    asked = {"model": "toy", "input": "hi", "timeout": 3, "priority": 2, "cache_salt": "s"}
    scheduling = responses_job(service, asked, ResponseStore(), "").asked.scheduling_params("me")
    assert (scheduling.timeout, scheduling.priority, scheduling.cache_salt) == (3, 2, "s")
    tried = {*SAMPLING, "timeout", "priority", "cache_salt", "model", "stream"}
    assert TextRequest.model_fields.keys() <= tried


def test_null_is_the_same_as_absent(responding):
    service = responding().service
    optional = {*ResponsesRequest.model_fields, *RESPONSES} - {"model", "input"}
    asked = {"model": "toy", "input": "hi"}
    nulls, plain = (responses_job(service, asked | more, ResponseStore(), "") for more in (dict.fromkeys(optional), {}))
    assert (nulls.asked, nulls.params, nulls.prompts) == (plain.asked, plain.params, plain.prompts)


@pytest.mark.parametrize("field", sorted(RESPONSES))
def test_unsupported_fields(responding, field):
    server = responding()
    for neutral in RESPONSES[field].neutral:
        ask(server, **{field: neutral})
    for other in (2, "other", [1], {"x": 1}, True):
        assert refused(server, **{field: other}) == field


def test_text_formats(responding):
    server = responding(b"No.")
    assert both(server, text={"format": {"type": "text"}})["output"][0]["content"][0]["text"] == "No."
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    asked = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    response = both(server, text={"format": asked})
    assert json.loads(response["output"][0]["content"][0]["text"]) == {"a": 1}
    assert response["text"] == {"format": asked}
    response = ask(server, text={"format": {"type": "json_object"}}, max_output_tokens=20)
    assert response["output"][0]["content"][0]["text"].startswith("{")
    for bad in (
        {"type": "json_schema"},
        {"type": "text", "schema": {}},
        asked | {"schema": {"type": "x"}},
        {"type": 1},
    ):
        assert refused(server, text={"format": bad}) == "text"
    assert refused(server, text={"verbosity": "low"}) == "text"
    assert refused(server, text={"format": {"type": "json_object"}}, tools=TOOLS) == "text"


def test_what_is_asked_is_told_again(responding):
    asked = {"temperature": 0.5, "top_p": 0.25, "metadata": {"a": "b"}, "user": "me", "truncation": "auto"}
    response = ask(responding(), **asked)
    assert {name: response[name] for name in asked} == asked
    assert (ask(responding())["metadata"], ask(responding())["temperature"]) == ({}, 1)


def test_tools_are_those_of_a_chat(responding):
    service = responding().service
    functions = [
        {"name": "a", "description": "b", "parameters": CITIES, "strict": True},
        {"name": "c", "strict": False},
        {"name": "d"},
    ]
    tools = [{"type": "function"} | function for function in functions]
    ours = responses_job(service, {"model": "toy", "input": "hi", "tools": tools}, ResponseStore(), "")
    in_chat = [{"type": "function", "function": function} for function in functions]
    asked = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "tools": in_chat}
    chat = chat_job(service, asked)
    assert (ours.prompts, ours.params) == (chat.prompts, chat.params)
    assert isinstance(ours.params, SamplingParams)
    assert ours.params.grammar is not None
    told = ask(responding(), tools=tools)["tools"]
    assert told == [{"description": None, "parameters": None, "strict": False} | tool for tool in tools]


def test_reasoning_effort_is_the_templates(responding):
    server = responding(template=EFFORTS)
    assert prompt(server, reasoning={"effort": "low"}).endswith("[assistant]low|")
    assert ask(server, reasoning={"effort": "high"})["reasoning"] == {"effort": "high", "summary": None}
    server = responding(template=TEMPLATE + "{{ enable_thinking }}|")
    assert prompt(server, reasoning={"effort": "none"}).endswith("[assistant]False|")
    assert refused(server, reasoning={"effort": "low"}) == "reasoning"
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    assert prompt(server, **kwargs).endswith("[assistant]True|")
    assert refused(server, reasoning={"effort": "none"}, **kwargs) == "reasoning"
    assert refused(responding(), reasoning={"effort": "low"}) == "reasoning"
    assert refused(responding(), reasoning={"summary": "auto"}) == "reasoning"


def test_chat_takes_a_reasoning_effort_too(responding):
    server = responding(template=EFFORTS)
    ids = server.chat(reasoning_effort="low", return_token_ids=True).json["prompt_token_ids"]
    assert server.service.tokenizer.decode(ids).endswith("[assistant]low|")
    for asked, value in ((responding(), "low"), (server, "x")):
        answer = asked.chat(reasoning_effort=value)
        assert (answer.status, answer.error["param"]) == (400, "reasoning_effort")


def test_items_of_earlier_turns_become_messages(responding):
    server = responding(template=SHOWING)
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}", "id": "fc_1", "status": None}
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "b"},
        call,
        call | {"call_id": "c2", "id": "fc_2"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
    ]
    shown = prompt(server, input=items)
    calls = [{"id": each, "type": "function", "function": {"name": "now", "arguments": {}}} for each in ("c1", "c2")]
    assert shown == f"[user]|a|[assistant]hm|b|{json.dumps(calls)}[tool]|2|[tool]|1|[assistant]"
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    assert prompt(server, input=[items[0], summary]) == "[user]|a|[assistant]s||[assistant]"


def test_what_an_answers_items_hold_beside_is_not_for_the_model(responding):
    server = responding(template=SHOWING)
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    part = {"type": "output_text", "text": "b"}
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [part]}, call]
    more = [
        items[0] | {"status": "completed"},
        {
            "role": "assistant", "status": "in_progress", "id": "msg_1", "phase": "final_answer",
            "content": [part | {"annotations": [], "logprobs": [], "parsed": {"c": 1}}],
        },
        call | {"parsed_arguments": {}, "status": "incomplete", "id": "fc_1"},
    ]  # fmt: skip
    assert prompt(server, input=more) == prompt(server, input=items)


def test_what_is_no_item_is_refused(responding):
    server = responding()
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    image = {"type": "input_image", "image_url": "http://x"}
    for bad in (
        None, 3, [], ["x"], [{}], [{"role": "tool", "content": "x"}], [{"role": "user"}],
        [{"role": "user", "content": [image]}], [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "input_text", "text": 3}]}],
        [{"role": "user", "content": [{"type": [1]}]}], [{"role": "user", "content": "x", "y": 1}],
        [{"type": "item_reference", "id": "msg_1"}], [{"type": "web_search_call"}], [{"type": 3}],
        [call | {"arguments": "["}], [call | {"arguments": {}}],
        [{"type": "function_call_output", "call_id": "c", "output": "x"}],
    ):  # fmt: skip
        assert refused(server, input=bad) == "input", bad
    answer = server.post("/v1/responses", {"model": "toy", "input": [{"type": "item_reference", "id": "x"}]})
    assert "item_reference" in answer.error["message"]


def test_other_tools_are_refused_by_name(responding):
    answer = responding().post("/v1/responses", {"model": "toy", "input": "x", "tools": [{"type": "web_search"}]})
    assert (answer.status, answer.error["param"]) == (400, "tools")
    assert "web_search" in answer.error["message"]
    for bad in ([{"type": "function", "name": "a b"}], [{"type": "function"}], [3], [TOOLS[1], TOOLS[1]]):
        assert refused(responding(), tools=bad) == "tools"


def test_errors_name_the_fields_of_this_endpoint(responding, make_live):
    server = responding()
    assert refused(server, max_output_tokens=0) == "max_output_tokens"
    assert refused(server, input="x" * 3000) == "input"
    assert refused(server, stream_options={}) == "stream_options"
    assert refused(server, unknown=1) == "unknown"
    assert refused(make_live(tokenizer=toys.byte_level_tokenizer(template=None))) == "input"
    answer = server.post("/v1/responses", {"model": "other", "input": "x"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


def test_truncation_leaves_out_the_oldest_turns(responding):
    server = responding(max_model_len=100)
    turns = [{"role": role, "content": name * 20} for name in "abcd" for role in ("user", "assistant")]
    asked = {"input": [*turns, {"role": "user", "content": "e"}], "instructions": "s"}
    assert refused(server, **asked) == "input"
    shown = prompt(server, truncation="auto", max_output_tokens=8, **asked)
    assert shown == f"[system]s[user]{'d' * 20}[assistant]{'d' * 20}[user]e[assistant]"
    assert refused(server, input="x" * 200, truncation="auto") == "input"


@pytest.mark.parametrize("num_kept", range(1, 9))
def test_truncation_costs_what_it_keeps(responding, monkeypatch, num_kept):
    """All is tried once, then more and more from the end: a conversation of months is not rendered again and again."""
    server = responding(max_model_len=256)
    sizes, render = [], server.service.tokenizer.apply_chat_template

    def spy(messages, **options):
        sizes.append(len(messages))
        return render(messages, **options)

    monkeypatch.setattr(server.service.tokenizer, "apply_chat_template", spy)
    turns = [{"role": "user", "content": f"{number:02}"} for number in range(64)]
    room = len("[user]00" * num_kept + "[assistant]")
    shown = prompt(server, input=turns, truncation="auto", max_output_tokens=256 - room)
    assert shown == "".join(f"[user]{number:02}" for number in range(64 - num_kept, 64)) + "[assistant]"
    assert sizes.count(64) == 1
    assert sum(sizes) <= 64 + 12 * num_kept
