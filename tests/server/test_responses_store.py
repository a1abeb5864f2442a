"""Responses that are stored: asked for again, gone on with, listed, forgotten; and by the official client."""

import json

import openai
import pytest
from openai.types.responses import ResponseItem
from pydantic import BaseModel, TypeAdapter

from tests.server.responding import TOOLS, ask, message, prompt, refused, stream
from tests.server.test_tools import CALL, TWO_CALLS
from xlaserve.config import ResponsesSection
from xlaserve.errors import InvalidRequest
from xlaserve.server.responses_api.store import ResponseStore

_ITEMS = TypeAdapter(list[ResponseItem])
KEYS = {"a": "key-a", "b": "key-b"}


class Answer(BaseModel):
    word: str


@pytest.fixture
def client(responding):
    with openai.OpenAI(base_url=f"{responding().url}/v1", api_key="none", max_retries=0) as client:
        yield client


def listed(server, response: dict, query: str = "") -> dict:
    page = server.get(f"/v1/responses/{response['id']}/input_items{query}").json
    _ITEMS.validate_json(json.dumps(page["data"]), strict=True)
    return page


def test_a_response_is_there_until_it_is_deleted(responding):
    server = responding()
    for response in (ask(server), stream(server)[-1]["response"]):
        path = f"/v1/responses/{response['id']}"
        assert server.get(path).json == response
        assert server.request("DELETE", path).json == {"id": response["id"], "object": "response", "deleted": True}
        for method, where in (
            ("GET", path),
            ("DELETE", path),
            ("GET", f"{path}/input_items"),
            ("POST", f"{path}/cancel"),
        ):
            answer = server.request(method, where)
            assert (answer.status, answer.error["param"]) == (404, "response_id")


def test_what_is_not_to_be_stored_is_not(responding):
    server = responding()
    response = ask(server, store=False)
    assert response["store"] is False
    assert server.get(f"/v1/responses/{response['id']}").status == 404
    assert refused(server, previous_response_id=response["id"]) == "previous_response_id"


def test_a_conversation_goes_on(responding):
    server = responding()
    first = ask(server, input="a", instructions="x")
    second = ask(server, input="b", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    shown = prompt(server, input="c", previous_response_id=second["id"], instructions="y")
    assert shown == "[system]y[user]a[assistant]hello[user]b[assistant]hello[user]c[assistant]"
    assert prompt(server, input="d", previous_response_id=first["id"]) == "[user]a[assistant]hello[user]d[assistant]"
    cut = ask(server, input="a", max_output_tokens=2)
    assert prompt(server, input="e", previous_response_id=cut["id"]) == "[user]a[assistant]he[user]e[assistant]"


def test_calls_are_answered_in_the_next_turn(responding):
    server = responding(TWO_CALLS)
    response = ask(server, tools=TOOLS)
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": str(n)}
        for n, call in enumerate(response["output"])
    ]
    shown = prompt(server, input=results, previous_response_id=response["id"], tools=TOOLS)
    assert shown.endswith("[tool]0[tool]1[assistant]")
    unknown = [results[0] | {"call_id": "other"}]
    assert refused(server, input=unknown, previous_response_id=response["id"]) == "input"
    cut = ask(server, tools=TOOLS, max_output_tokens=CALL.index(b"Oslo"))
    assert cut["output"][-1]["status"] == "incomplete"
    assert prompt(server, input="go on", previous_response_id=cut["id"]) == "[user]hi[user]go on[assistant]"


def test_an_unknown_response_is_named(responding):
    answer = responding().post("/v1/responses", {"model": "toy", "input": "x", "previous_response_id": "resp_1"})
    assert (answer.status, answer.error["param"]) == (400, "previous_response_id")
    assert answer.error["code"] == "previous_response_not_found"
    assert "resp_1" in answer.error["message"]


def test_an_item_stands_in_a_conversation_once(responding):
    """As at OpenAI; what was answered stands in it already, and need not be sent again."""
    server = responding()
    first = ask(server, input="a")
    mine = {"role": "user", "content": "b", "id": "msg_mine"}
    for more in ({"input": [mine, mine]}, {"input": first["output"], "previous_response_id": first["id"]}):
        answer = server.post("/v1/responses", {"model": "toy"} | more)
        assert (answer.status, answer.error["param"]) == (400, "input")
        assert more["input"][0]["id"] in answer.error["message"]
    ask(server, input=[mine, *first["output"]])


def test_input_with_nothing_to_show_is_refused(responding):
    answer = responding().post("/v1/responses", {"model": "toy", "input": [{"type": "reasoning", "summary": []}]})
    assert (answer.status, answer.error["param"]) == (400, "input")
    assert answer.error["message"].startswith("input:")


def test_items_that_led_to_a_response(responding):
    server = responding()
    first = ask(server, input="a")
    (item,) = listed(server, first)["data"]
    assert item == {
        "id": item["id"], "type": "message", "role": "user", "status": "completed",
        "content": [{"type": "input_text", "text": "a"}],
    }  # fmt: skip
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    more = [
        {"role": "developer", "content": "b"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "c"}], "id": "msg_mine"},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    second = ask(server, input=more, previous_response_id=first["id"])
    page = listed(server, second, "?order=asc")
    kinds = ["message", "message", "message", "reasoning", "message", "function_call", "function_call_output"]
    assert [each["type"] for each in page["data"]] == kinds
    assert page["data"][1] == first["output"][0]
    assert page["data"][4]["id"] == "msg_mine"
    ids = [each["id"] for each in page["data"]]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[-1], False)
    assert [each["id"] for each in listed(server, second)["data"]] == ids[::-1]
    part = listed(server, second, f"?order=asc&limit=2&after={ids[1]}")
    assert ([each["id"] for each in part["data"]], part["has_more"]) == (ids[2:4], True)
    for query, param in (("limit=0", "limit"), ("after=x", "after"), ("order=x", "order"), ("include=x", "include")):
        answer = server.get(f"/v1/responses/{second['id']}/input_items?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


def test_nothing_can_be_cancelled_or_streamed_again(responding):
    server = responding()
    path = f"/v1/responses/{ask(server)['id']}"
    answer = server.request("POST", f"{path}/cancel")
    assert (answer.status, answer.error["param"]) == (400, "response_id")
    for query, param in (("stream=true", "stream"), ("include=x", "include"), ("starting_after=1", "starting_after")):
        answer = server.get(f"{path}?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)
    assert server.get(f"{path}?stream=false").status == 200


def test_a_tenant_sees_its_own_only(make_live):
    server = make_live(api_keys=KEYS)

    def send(method: str, path: str, whose: str, body: dict | None = None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[whose]}"}
        return server.request(method, path, body, headers)

    response = send("POST", "/v1/responses", "a", {"model": "toy", "input": "x"}).json
    path = f"/v1/responses/{response['id']}"
    for method, where in (("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path), ("POST", f"{path}/cancel")):
        assert send(method, where, "b").status == 404
    asked = {"model": "toy", "input": "x", "previous_response_id": response["id"]}
    assert send("POST", "/v1/responses", "b", asked).error["code"] == "previous_response_not_found"
    assert send("GET", path, "a").json == response
    assert send("POST", "/v1/responses", "a", asked).status == 200


def is_there(store: ResponseStore, response_id: str) -> bool:
    try:
        store.get(response_id, tenant="")
    except InvalidRequest:
        return False
    return True


def test_the_number_is_bounded_and_the_least_recently_used_go_first():
    store = ResponseStore(ResponsesSection(max_number=2))
    for name in "ab":
        store.put(name, b"{}", [], tenant="")
    store.get("a", tenant="")
    store.put("c", b"{}", [], tenant="")
    assert [is_there(store, name) for name in "abc"] == [True, False, True]


def test_the_bytes_are_bounded():
    store = ResponseStore(ResponsesSection(max_bytes=100))
    for name in "abc":
        store.put(name, b"x" * 40, [], tenant="")  # and "[]"
    assert [is_there(store, name) for name in "abc"] == [False, True, True]
    store.delete("b", tenant="")
    store.put("d", b"x" * 40, [], tenant="")
    assert [is_there(store, name) for name in "cd"] == [True, True]
    store.put("e", b"", [message("x" * 200)], tenant="")
    assert not any(is_there(store, name) for name in "cde")
    store.put("f", b"x" * 98, [], tenant="")
    assert is_there(store, "f")


def test_the_client(client):
    response = client.responses.create(model="toy", input="hi", instructions="be brief", metadata={"a": "b"})
    assert response.output_text == "hello"
    assert client.responses.retrieve(response.id).metadata == {"a": "b"}
    again = client.responses.create(model="toy", input="more", previous_response_id=response.id)
    assert [item.type for item in client.responses.input_items.list(again.id)] == ["message"] * 3
    sent_back = [{"role": "user", "content": "hi"}, *response.output, {"role": "user", "content": "more"}]
    assert client.responses.create(model="toy", input=sent_back).usage.input_tokens == again.usage.input_tokens
    assert client.responses.delete(response.id) is None
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.cancel(again.id)
    assert refusal.value.param == "response_id"
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="toy", input="x", background=True)
    assert refusal.value.param == "background"


def test_the_clients_stream_helper(responding):
    server = responding(b"I look it up.\n" + TWO_CALLS, thinks=True)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.stream(model="toy", input="hi", tools=TOOLS) as events:
            kinds = {event.type for event in events}
            final = events.get_final_response()
        assert {"response.output_text.delta", "response.function_call_arguments.done", "response.completed"} <= kinds
        assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
        assert final.output_text == "I look it up."
        calls = [item for item in final.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
        sent = [{"role": "user", "content": "hi"}, *final.output, *results]
        assert client.responses.create(model="toy", input=sent, tools=TOOLS).status == "completed"


def test_the_clients_parse(responding):
    server = responding(b'{"word": "hello"}')
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        parsed = client.responses.parse(model="toy", input="hi", text_format=Answer)
        assert parsed.output_parsed == Answer(word="hello")
        sent = [{"role": "user", "content": "hi"}, *parsed.output]
        assert client.responses.create(model="toy", input=sent).status == "completed"
