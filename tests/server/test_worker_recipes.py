"""What a worker writes is what the engine's process would: the same bytes, of jobs and outputs that crossed a wire."""

import json
import re

import pytest

from tests.server.responding import TOOLS as RESPONSE_TOOLS
from tests.server.test_tools import CITIES, TEMPLATE, saying
from tests.server.toy_service import make_toy_service
from tests.toys import byte_level_tokenizer, byte_tokenizer, sentencepiece_tokenizer
from xlaserve.core.outputs import EngineOutput, TokenLogprobs
from xlaserve.engine.generations import Generations
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.scheduling_params import NO_PREFERENCE
from xlaserve.server.jobs import chat_job, completion_job
from xlaserve.server.responses_api.job import responses_job
from xlaserve.server.responses_api.store import ResponseStore
from xlaserve.server.workers.outputs import decode_outputs, encode_outputs, facts_of
from xlaserve.server.workers.program import _Model, _Remote
from xlaserve.server.workers.recipes import describe, restore

SAYS = b'<think>Hm, so.</think>Well: <tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITIES}}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CASES = {
    "completion": [
        {},
        {"n": 2, "prompt": ["hi", "you"], "stop": ["so"], "return_token_ids": True},
        {"stop": ["Well"], "include_stop_str_in_output": True, "logprobs": 2, **USAGE},
        {"echo": True, "logprobs": 3, "return_timings": True},
        {"prompt": [1, 2, 3], "max_tokens": 9, "return_tokens_as_token_ids": True, "logprobs": 0},
        {"truncate_prompt_tokens": 1, "echo": True, "stream_options": {"include_usage": True}},
        {"request_id": "mine", "skip_special_tokens": False, "max_tokens": 0, "echo": True},
    ],
    "chat": [
        {},
        {"n": 3, "logprobs": True, "top_logprobs": 2, "tools": [TOOL], **USAGE},
        {"tools": [TOOL], "tool_choice": "required", "include_reasoning": False},
        {"max_tokens": 12, "return_token_ids": True, "thinking_token_budget": 5},
    ],
    "responses": [
        {},
        {"tools": RESPONSE_TOOLS, "store": False},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
        {"max_output_tokens": 30, "instructions": "Be brief.", "metadata": {"a": "b"}},
    ],
}
BASE = {
    "completion": {"prompt": "hi"},
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
}


@pytest.fixture(scope="module")
def service():
    tokenizer = byte_level_tokenizer(template=TEMPLATE)
    options = {"tokenizer": tokenizer, "tool_parser": "hermes", "thinks": True, "max_model_len": 2000}
    made, runner = make_toy_service(b"", num_blocks=(1000,), next_token=saying(tokenizer, SAYS), **options)
    yield made
    assert made.shutdown(timeout=0)
    assert runner.violations == []


class _Wire:
    """In place of a worker: its streams, and what it has told the other process."""

    def __init__(self):
        self.streams = {}
        self.told = []

    def tell(self, kind, **content):
        self.told.append((kind.name, content))


def said(service, job) -> list[list[tuple]]:
    """What the engine says, in one frame each time that there is something."""
    generations = Generations(service, job.prompts, job.params, job.renderer.id)
    frames, begun = [], set()
    while not generations.is_over:
        entries = []
        for index, output in generations.outputs():
            facts = None if index in begun else facts_of(generations.by_index[index].request)
            begun.add(index)
            entries.append((index + 7, output, facts))
        frames += [entries] if entries else []
        generations.news.wait(5)
        generations.news.clear()
    return frames


def written(model, job, frames, through) -> tuple[list[bytes], list]:
    """The pieces of the stream, and what the worker has told."""
    wire = _Wire()
    remote = _Remote(wire, model, first=7)
    generations = job.start(remote, NO_PREFERENCE, remote.check)
    stream = job.stream(generations)
    pieces = [next(stream)]
    for entries in frames:
        for number, output, facts in through(entries):
            for name, value in (facts or {}).items():
                setattr(wire.streams[number].request, name, value)
            wire.streams[number].put(output)
        pieces.append(next(stream, b"over"))
    return pieces, wire.told


def without_chance(pieces: list[bytes]) -> list[bytes]:
    """Times and the names of items and calls are not the same twice."""
    pattern = rb'"(msg|rs|fc)_[0-9a-f]+"|"call_\w+"|"(created\w*|completed_at|total|tokens_per_second)":[\d.e-]+'
    return [re.sub(pattern, b"-", piece) for piece in pieces]


@pytest.mark.parametrize(("kind", "fields"), [(kind, fields) for kind, cases in CASES.items() for fields in cases])
def test_the_same_bytes(service, kind, fields):
    data = {"model": "toy", "stream": True, "max_tokens": 150, "temperature": 0} | BASE[kind] | fields
    kept = []
    if kind == "responses":
        del data["max_tokens"]
        job = responses_job(service, data, ResponseStore(), "")
    else:
        job = {"completion": completion_job, "chat": chat_job}[kind](service, data)
    frames = said(service, job)
    assert len(frames) > 1 or data.get("max_tokens") == 0
    here, told_here = written(service, job, frames, lambda entries: entries)
    told = json.loads(json.dumps(describe(job)))
    model = _Model(service.info, Tokenizer.from_json(json.loads(json.dumps(service.tokenizer.to_json()))))
    there, told_there = written(
        model,
        restore(model, told, lambda *answer: kept.append(answer)),
        frames,
        lambda entries: decode_outputs(encode_outputs(entries)),
    )
    assert without_chance(there) == without_chance(here)
    assert told_there == told_here
    assert job.renderer.id.encode() in b"".join(there)
    assert len(kept) == (kind == "responses" and fields.get("store", True))


@pytest.mark.parametrize("make", [byte_tokenizer, byte_level_tokenizer, sentencepiece_tokenizer])
def test_a_tokenizer_of_another_process_is_the_same(make):
    here = make()
    there = Tokenizer.from_json(json.loads(json.dumps(here.to_json())))
    text = "Hello, the world: <s> é日🌶\n\n</s>"
    ids = here.encode(text)
    assert there.encode(text) == ids
    assert there.decode(ids) == here.decode(ids)
    everything = range(here.vocab_size)
    assert [there.token_bytes(i) for i in everything] == [here.token_bytes(i) for i in everything]
    for name in ("eos_ids", "bos_id", "special_ids", "added_ids", "vocab_size", "chat_template", "has_chat_template"):
        assert getattr(there, name) == getattr(here, name), name


def test_outputs_keep_their_order_and_all_they_hold():
    logprobs = (TokenLogprobs(-0.1, ((5, -0.1), (6, float("-inf")))), TokenLogprobs(-2.5, ()))
    entries = [
        (2**40, EngineOutput("", (1, 2, 3)), None),
        (3, EngineOutput("", (9,), finish_reason="stop", stop_reason=9), None),
        (4, EngineOutput("", (), finish_reason="error", error="é"), {"num_cached_tokens": 2}),
        (5, EngineOutput("", (8, 8), logprobs), None),
        (6, EngineOutput("", ()), None),
    ]
    decoded = list(decode_outputs(encode_outputs(entries)))
    assert sorted(decoded, key=lambda entry: entry[0]) == sorted(entries, key=lambda entry: entry[0])
