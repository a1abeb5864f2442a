"""POST /v1/responses: answers as items, whole and streamed."""

import openai
import pytest

from tests.server.responding import LOGPROBS, TOOLS, ask, bare, both, message, prompt, refused
from tests.server.test_tools import CALL, TWO_CALLS

THOUGHT = b"<think>\nLet me see.\n</think>\n\n"


def test_a_text_is_answered_with_a_message(responding):
    response = both(responding())
    assert bare(response["output"]) == [message("hello")]
    assert response["id"].startswith("resp_")
    assert response["output"][0]["id"].startswith("msg_")
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)
    usage = response["usage"]
    assert (usage["output_tokens"], usage["total_tokens"]) == (6, usage["input_tokens"] + 6)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_the_prompt_is_that_of_a_chat(responding):
    server = responding()
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": None}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]},
    ]
    expected = "[system]sys[developer]be brief[user]a[assistant]b[assistant]no[user]c\nd[assistant]"
    assert prompt(server, input=items, instructions="sys") == expected
    assert prompt(server, input="x") == "[user]x[assistant]"


def test_cached_tokens_are_counted(responding):
    server = responding()
    first, second = (ask(server, input="x" * 100)["usage"]["input_tokens_details"] for _ in range(2))
    assert first == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert second["cached_tokens"] >= 64


def test_an_empty_answer_is_an_empty_message(responding):
    assert bare(both(responding(b""))["output"]) == [message("")]


def test_max_output_tokens(responding):
    response = both(responding(), max_output_tokens=3)
    assert bare(response["output"]) == [message("hel", "incomplete")]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["max_output_tokens"] == 3


def test_calls(responding):
    server = responding(b"I look it up.\n" + TWO_CALLS)
    response = both(server, tools=TOOLS)
    call = {"type": "function_call", "status": "completed"}
    assert bare(response["output"]) == [
        message("I look it up."),
        call | {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        call | {"name": "now", "arguments": "{}"},
    ]
    first, second = (item["call_id"] for item in response["output"][1:])
    assert first.startswith("call_")
    assert first != second
    assert [tool["name"] for tool in response["tools"]] == ["get_weather", "now"]
    alone = both(server, tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in alone["output"]] == ["message", "function_call"]
    assert alone["parallel_tool_calls"] is False


def test_a_call_that_is_cut(responding):
    response = both(responding(CALL), tools=TOOLS, max_output_tokens=CALL.index(b"Oslo"))
    assert bare(response["output"]) == [
        {"type": "function_call", "name": "get_weather", "arguments": '{"city": "', "status": "incomplete"}
    ]


def test_tool_choice(responding):
    server = responding(b"No.")
    choice = {"type": "function", "name": "now"}
    (call,) = both(server, tools=TOOLS, tool_choice=choice)["output"]
    assert (call["type"], call["name"]) == ("function_call", "now")
    assert both(server, tools=TOOLS, tool_choice="required", max_output_tokens=90)["output"][0]["type"] != "message"
    none = both(server, tools=TOOLS, tool_choice="none")
    assert (bare(none["output"]), none["tool_choice"]) == ([message("No.")], "none")
    assert ask(server, tool_choice="auto")["tool_choice"] == "auto"
    assert refused(server, tool_choice="required") == "tool_choice"
    assert refused(server, tools=TOOLS, tool_choice={"type": "function", "name": "other"}) == "tool_choice"


def test_reasoning_is_an_item_of_its_own(responding):
    server = responding(THOUGHT + b"It is 4.", thinks=True)
    response = both(server)
    reasoning = {
        "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Let me see."}],
        "status": "completed",
    }  # fmt: skip
    assert bare(response["output"]) == [reasoning, message("It is 4.")]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": THOUGHT.index(b"\n\n")}
    cut = both(server, max_output_tokens=12)
    reasoning |= {"content": [{"type": "reasoning_text", "text": "Let"}], "status": "incomplete"}
    assert bare(cut["output"]) == [reasoning]


@pytest.mark.parametrize("thinks", [True, False])
def test_logprobs_are_those_of_the_text(responding, thinks):
    script = (THOUGHT if thinks else b"") + b"It is 4."
    response = both(responding(script, thinks=thinks), include=[LOGPROBS], top_logprobs=2)
    (part,) = response["output"][-1]["content"]
    text = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"][:-1])  # the last is EOS
    assert text.strip() == b"It is 4."
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    assert response["top_logprobs"] == 2


def test_logprobs_are_only_told_when_asked_for(responding):
    server = responding()
    assert "logprobs" not in ask(server)["output"][0]["content"][0]
    assert refused(server, top_logprobs=2) == "top_logprobs"
    assert refused(server, include=[LOGPROBS], tools=TOOLS) == "include"
    for other in ("reasoning.encrypted_content", "file_search_call.results"):
        assert refused(server, include=[other]) == "include"


def test_a_failure_ends_a_stream_with_an_event(responding):
    server = responding(b"x" * 500, step_seconds=0.05)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        events = iter(client.responses.create(model="toy", input="hi", stream=True))
        for _ in range(5):
            next(events)
        server.state.stop()
        *_, last = events
    assert last.type == "response.failed"
    assert last.response.error
    assert last.response.error.code == "server_error"
    assert "shut down" in last.response.error.message


def test_a_timeout_ends_an_answer_without_a_reason_of_openais(responding):
    response = ask(responding(b"x" * 500, step_seconds=0.05), timeout=0.3)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", None)
