"""response_format, structured_outputs and vLLM's older names: what they make of an answer, and what is refused."""

import json
import re
import threading

import pytest

from tests.server.test_answers import joined

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "s": {"enum": ["x", "y", "é"]}},
    "required": ["n", "s"],
    "additionalProperties": False,
}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


def is_asked_json(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"n", "s"} and 0 <= value["n"] <= 999 and value["s"] in ("x", "y", "é")


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def matches(pattern: str):
    return lambda text: re.fullmatch(pattern, text) is not None


FIELDS = [
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, is_asked_json),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, is_asked_json),
    ({"structured_outputs": {"json": SCHEMA}}, is_asked_json),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, is_asked_json),
    ({"guided_json": SCHEMA}, is_asked_json),
    ({"structured_outputs": {"regex": "a[bc]{4}"}}, matches("a[bc]{4}")),
    ({"guided_regex": "a[bc]{4}"}, matches("a[bc]{4}")),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, matches("yes|no")),
    ({"guided_choice": ["yes", "no"]}, matches("yes|no")),
    ({"structured_outputs": {"grammar": 'start: "a" /[bc]{4}/'}}, matches("a[bc]{4}")),
    ({"guided_grammar": 'root ::= "a" [bc] [bc]'}, matches("a[bc]{2}")),
]


@pytest.fixture
def toy(make_live):
    """A model of arithmetic: it says anything."""
    return make_live(next_token=None, max_model_len=700, num_blocks=(600,))


@pytest.mark.parametrize(
    ("fields", "holds"), FIELDS, ids=lambda value: value.__name__ if callable(value) else str(value)[:50]
)
@pytest.mark.parametrize("send", ["complete", "chat"])
def test_the_answer_is_as_asked(toy, send, fields, holds):
    texts = set()
    for seed in range(2):
        choice = getattr(toy, send)(seed=seed, max_tokens=500, **fields).json["choices"][0]
        texts.add(choice["text"] if send == "complete" else choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
    assert all(holds(text) for text in texts)


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}], ids=str
)
def test_any_json_object(make_live, fields):
    live = make_live(b'{"a": [1, true]} and more')
    choice = live.complete(max_tokens=50, **fields).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ('{"a": [1, true]}', "stop")


def test_plain_text_is_not_constrained(live):
    assert live.complete(response_format={"type": "text"}).json["choices"][0]["text"] == "hello"


@pytest.mark.parametrize("fields", [{"response_format": {"type": "structural_tag", **TAGS}},
                                    {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}], ids=str)  # fmt: skip
def test_structural_tags(make_live, fields):
    live = make_live(b"say <f>no json</f>")
    text = live.complete(max_tokens=80, **fields).json["choices"][0]["text"]
    assert text.startswith("say <f>{")
    assert live.complete(max_tokens=80).json["choices"][0]["text"] == "say <f>no json</f>"


def test_the_stream_and_every_choice_are_constrained(toy):
    asked = {"n": 4, "seed": 5, "max_tokens": 500, "guided_json": SCHEMA}
    whole = [choice["text"] for choice in toy.complete(**asked).json["choices"]]
    assert all(map(is_asked_json, whole))
    assert len(set(whole)) > 1
    events = toy.complete(stream=True, **asked).events
    assert [joined(events, index) for index in range(4)] == whole


def test_a_constrained_answer_does_not_depend_on_its_company(toy):
    asked = [{"seed": 1, "guided_json": SCHEMA}, {"seed": 2}, {"seed": 3, "guided_regex": "[a-z]{9}"}, {"seed": 4}]
    alone = [toy.complete(max_tokens=60, **fields).json["choices"] for fields in asked]
    together = [None] * len(asked)

    def send(index: int) -> None:
        together[index] = toy.complete(max_tokens=60, **asked[index]).json["choices"]

    threads = [threading.Thread(target=send, args=(index,)) for index in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert together == alone


def test_what_the_schema_gives_is_not_sampled_and_nothing_else_changes(toy):
    """Logprobs are told of sampled tokens only: a request for some has each sampled."""
    names = {name: {"type": "integer", "minimum": 0, "maximum": 9} for name in ("a_long_name", "an_even_longer_name")}
    long_names = {"type": "object", "properties": names, "required": [*names], "additionalProperties": False}
    asked = {"guided_json": long_names, "max_tokens": 200, "seed": 4}
    found, num_steps = [], []
    for fields in ({}, {"logprobs": 0}):
        before = toy.runner.calls["body"]
        whole = toy.complete(**asked, **fields).json
        num_steps.append(toy.runner.calls["body"] - before)
        choice, num_tokens = whole["choices"][0], whole["usage"]["completion_tokens"]
        found.append((choice["text"], choice["finish_reason"], num_tokens))
    assert found[0] == found[1]
    text, _, num_tokens = found[0]
    assert num_tokens - num_steps[0] > 20
    assert num_steps[1] >= num_tokens
    assert joined(toy.complete(stream=True, **asked).events, 0) == text
    cut = [toy.complete(stop="even", **asked, **fields).json for fields in ({}, {"logprobs": 0})]
    assert [each["choices"][0]["text"] for each in cut] == [text.partition("even")[0]] * 2
    assert cut[0]["usage"]["completion_tokens"] == cut[1]["usage"]["completion_tokens"] < num_tokens


def test_max_tokens_cuts_the_json(toy):
    choice = toy.complete(guided_json=SCHEMA, max_tokens=3).json["choices"][0]
    assert (choice["finish_reason"], len(choice["text"]) <= 3) == ("length", True)


def test_ignore_eos_goes_on_as_long_as_the_grammar(toy):
    texts = [toy.complete(guided_regex="a{1,30}", ignore_eos=ignored, max_tokens=60, seed=8).json["choices"][0]
             for ignored in (False, True)]  # fmt: skip
    assert len(texts[0]["text"]) < 30
    assert (texts[1]["text"], texts[1]["finish_reason"]) == ("a" * 30, "stop")


def test_report_23_logprobs_of_constrained_tokens_are_numbers(toy):
    """The harness refuses Infinity and NaN in JSON."""
    asked = {"guided_json": SCHEMA, "max_tokens": 100, "seed": 3}
    content = toy.chat(logprobs=True, top_logprobs=5, **asked).json["choices"][0]["logprobs"]["content"]
    assert all(len(token["top_logprobs"]) == 5 for token in content)
    assert toy.complete(logprobs=5, **asked).json["choices"][0]["logprobs"]["tokens"]


JSON_SCHEMA = {"type": "json_schema"}
BAD = [
    ({"response_format": JSON_SCHEMA}, "response_format", "json_schema"),
    ({"response_format": JSON_SCHEMA | {"json_schema": {"name": "a"}}}, "response_format", "schema"),
    ({"response_format": JSON_SCHEMA | {"schema": SCHEMA}}, "response_format", "schema"),
    ({"response_format": JSON_SCHEMA | {"json_schema": {"schema": {"items": 3}}}}, "response_format", "items is 3"),
    ({"response_format": {"type": "xml"}}, "response_format", "type"),
    ({"response_format": {"type": "text", "json_schema": NAMED}}, "response_format", "json_schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "structures"),
    ({"response_format": "json"}, "response_format", "dictionary"),
    ({"structured_outputs": {}}, "structured_outputs", "says nothing"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "says nothing"),
    ({"structured_outputs": {"backend": "x"}}, "structured_outputs", "backend"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "one thing"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "one thing"),
    ({"guided_regex": "("}, "guided_regex", "unclosed"),
    ({"guided_regex": ""}, "guided_regex", "empty"),
    ({"guided_choice": []}, "guided_choice", "list of strings"),
    ({"guided_choice": "yes"}, "guided_choice", "list"),
    ({"guided_grammar": "no grammar"}, "guided_grammar", "::="),
    ({"guided_json": 3}, "guided_json", "schema is an object"),
    ({"guided_json": SCHEMA, "min_tokens": 2}, "min_tokens", "guided_json"),
    ({"guided_json": SCHEMA, "allowed_token_ids": [5]}, "allowed_token_ids", "guided_json"),
    ({"guided_json": SCHEMA, "bad_words": ["a"]}, "bad_words", "guided_json"),
    ({"guided_json": SCHEMA, "use_beam_search": True}, "guided_json", "use_beam_search"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "told"), BAD, ids=lambda value: str(value)[:60])
def test_report_82_bad_formats_are_named_and_others_keep_running(make_live, fields, param, told):
    live = make_live()
    answer = live.complete(**fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert told in answer.error["message"]
    assert live.complete().json["choices"][0]["text"] == "hello"
