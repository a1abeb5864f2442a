"""Asks /v1/responses, and checks every answer and every event against the official client's types."""

import json

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.test_tools import CITIES

_EVENT = TypeAdapter(ResponseStreamEvent)
TOOLS = [{"type": "function", "name": "get_weather", "parameters": CITIES}, {"type": "function", "name": "now"}]
LOGPROBS = "message.output_text.logprobs"


def ask(server, **fields) -> dict:
    answer = server.post("/v1/responses", {"model": "toy", "input": "hi"} | fields)
    assert answer.status == 200, answer.body
    Response.model_validate_json(answer.body, strict=True)
    return answer.json


def stream(server, **fields) -> list[dict]:
    """The events, after checking their frame, their types and their numbers."""
    answer = server.post("/v1/responses", {"model": "toy", "input": "hi", "stream": True} | fields)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *frames, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _EVENT.validate_json(data.removeprefix("data: "), strict=True)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def refused(server, **fields) -> str:
    answer = server.post("/v1/responses", {"model": "toy", "input": "hi"} | fields)
    assert answer.status == 400, answer.body
    return answer.error["param"]


def prompt(server, **fields) -> str:
    """What the model was shown: the answer's ids and what it cost are the server's own."""
    shown = []
    encode = server.service.tokenizer.encode

    def spy(text, **options):
        shown.append(text)
        return encode(text, **options)

    server.service.tokenizer.encode = spy
    try:
        ask(server, **fields)
    finally:
        del server.service.tokenizer.encode
    return shown[-1]


def put_together(events: list[dict]) -> list[dict]:
    """The output, from its deltas alone; each item's own events are checked on the way."""
    items: list[dict] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
            assert event["item"]["status"] == "in_progress"
        elif kind.startswith("response.content_part.added"):
            items[event["output_index"]]["content"].append(event["part"])
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            part = items[event["output_index"]]["content"][event["content_index"]]
            assert event["delta"] or event["logprobs"]
            part["text"] += event["delta"]
            part.get("logprobs", []).extend(event.get("logprobs", []))
        elif kind == "response.function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert event["text"] == items[event["output_index"]]["content"][0]["text"]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == items[event["output_index"]]["arguments"]
        elif kind == "response.output_item.done":
            items[event["output_index"]]["status"] = event["item"]["status"]
            assert event["item"] == items[event["output_index"]]
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]["id"]
    return items


def bare(output: list[dict]) -> list[dict]:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


def both(server, **fields) -> dict:
    """The response, once whole, streamed and put together are known to be the same."""
    response, events = ask(server, **fields), stream(server, **fields)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == f"response.{response['status']}"
    assert put_together(events[:-1]) == last["response"]["output"]
    assert bare(last["response"]["output"]) == bare(response["output"])
    of_one = {"id", "created_at", "completed_at", "output", "usage"}
    told, streamed = ({k: v for k, v in each.items() if k not in of_one} for each in (response, last["response"]))
    assert streamed == told
    assert last["response"]["usage"]["output_tokens"] == response["usage"]["output_tokens"]
    return response


def message(text: str, status: str = "completed") -> dict:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": status, "content": [part]}
