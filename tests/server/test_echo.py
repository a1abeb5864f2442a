"""Completions that repeat and score their prompts, and prompt_logprobs in both kinds of answer."""

import numpy as np
import pytest

from tests import tiny_models
from tests.server.fields.said import Said
from tests.server.tiny_server import BOS, tiny_server

TEXT = "To be, or not to be"  # longer than a step's outputs: it is read in several


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, cache_dir):
    with tiny_server(tmp_path_factory.mktemp("model") / "tiny", cache_dir) as server:
        yield server


def complete(tiny, **fields) -> Said:
    answer = tiny.post("/v1/completions", {"model": "toy", "temperature": 0, "prompt": TEXT} | fields)
    assert answer.status == 200, answer.body
    return Said(answer)


@pytest.mark.parametrize("length", [1, 17, 40])
def test_report_20_a_prompt_alone_is_scored_as_transformers_scores_it(tiny, length):
    """Its recorded logits, and a log_softmax in float64."""
    ids = tiny_models.prompt(length)
    said = complete(tiny, prompt=ids, max_tokens=0, logprobs=1, echo=True)
    logits = tiny_models.logits("llama", [length])[0].astype(np.float64)
    logprobs = logits - logits.max(axis=-1, keepdims=True)
    logprobs -= np.log(np.exp(logprobs).sum(axis=-1, keepdims=True))
    expected = [float(logprobs[at, ids[at + 1]]) for at in range(length - 1)]
    found = said.choice["logprobs"]["token_logprobs"]
    assert (found[0], len(found)) == (None, length)
    assert found[1:] == pytest.approx(expected, abs=1e-4)
    assert (said.usage["prompt_tokens"], said.usage["completion_tokens"]) == (length, 0)


def test_report_20_the_text_of_a_prompt_alone_is_the_prompt(tiny):
    for prompt in (TEXT, "a"):
        said = complete(tiny, prompt=prompt, max_tokens=0, logprobs=1, echo=True)
        assert (said.text, said.usage["completion_tokens"]) == (prompt, 0)


def test_what_was_generated_is_scored_alike_as_a_prompt(tiny):
    generated = complete(tiny, max_tokens=9, logprobs=3, return_token_ids=True, ignore_eos=True)
    ids = generated.prompt_ids + generated.ids
    echoed = complete(tiny, prompt=ids, max_tokens=0, logprobs=3, echo=True)
    found, expected = echoed.choice["logprobs"], generated.choice["logprobs"]
    assert found["token_logprobs"][-9:] == pytest.approx(expected["token_logprobs"], abs=1e-4)
    assert found["tokens"][-9:] == expected["tokens"]
    for one, other in zip(found["top_logprobs"][-9:], expected["top_logprobs"], strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert len(found["tokens"]) == len(ids)
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert (echoed.text, echoed.end) == (TEXT + generated.text, ("length", None))
    assert echoed.usage["completion_tokens"] == 0


def test_prompt_and_answer_are_one_run_of_tokens(tiny):
    """As evaluation harnesses read them: one entry per token of prompt and answer, offsets from the text's start."""
    said = complete(tiny, max_tokens=2, logprobs=1, echo=True, ignore_eos=True, skip_special_tokens=False)
    found = said.choice["logprobs"]
    assert len(found["tokens"]) == 1 + len(TEXT) + 2
    assert found["text_offset"][:3] == [0, len("<s>"), len("<s>") + 1]
    assert all(len(each) in (1, 2) for each in found["top_logprobs"][1:])  # the token itself is always there


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_a_stream_says_the_same(tiny, max_tokens):
    fields = {"max_tokens": max_tokens, "logprobs": 2, "echo": True, "n": 1 if max_tokens == 0 else 2, "seed": 1}
    whole = complete(tiny, **fields)
    events = tiny.post("/v1/completions", {"model": "toy", "temperature": 0, "prompt": TEXT, "stream": True} | fields)
    for choice in whole.choices:
        chunks = [each["choices"][0] for each in events.events if each["choices"][0]["index"] == choice["index"]]
        assert "".join(each["text"] for each in chunks) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for each in chunks for value in (each["logprobs"] or {}).get(name, ())] == values
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]


def test_a_prompt_of_ids_is_shown_as_text_and_so_is_one_cut_short(tiny):
    assert complete(tiny, prompt=[BOS, *b"abc"], max_tokens=0, echo=True).text == "abc"
    assert complete(tiny, prompt=[BOS, *b"abc"], max_tokens=0, echo=True, skip_special_tokens=False).text == "<s>abc"
    assert complete(tiny, max_tokens=0, echo=True, truncate_prompt_tokens=5).text == TEXT[-5:]
    assert complete(tiny, max_tokens=0, echo=True, truncate_prompt_tokens=-1).text == TEXT


def test_a_prompt_of_one_token(tiny):
    said = complete(tiny, prompt=[5], max_tokens=0, echo=True, logprobs=0, prompt_logprobs=1)
    assert said.choice["logprobs"]["token_logprobs"] == [None]
    assert said.choice["prompt_logprobs"] == [None]


def test_each_shows_as_many_alternatives_as_it_asks_for(tiny):
    said = complete(tiny, max_tokens=1, echo=True, logprobs=1, prompt_logprobs=4)
    assert max(len(each) for each in said.choice["logprobs"]["top_logprobs"][1:]) == 2
    assert {len(each) for each in said.choice["prompt_logprobs"][1:]} == {4, 5}
    scored = zip(said.choice["prompt_logprobs"][1:], said.choice["logprobs"]["token_logprobs"][1:-1], strict=True)
    for token, (each, logprob) in zip(TEXT, scored, strict=True):
        assert each[str(ord(token))]["logprob"] == logprob
        assert each[str(ord(token))]["decoded_token"] == token


def test_prompts_of_a_chat_are_scored_too(tiny):
    messages = [{"role": "user", "content": TEXT}]
    asked = {"model": "toy", "messages": messages, "max_tokens": 2, "prompt_logprobs": 0, "return_token_ids": True}
    answer = tiny.post("/v1/chat/completions", asked | {"n": 2}).json
    ids, found = answer["prompt_token_ids"], answer["prompt_logprobs"]
    assert [list(each) for each in found[1:]] == [[str(token_id)] for token_id in ids[1:]]
    echoed = complete(tiny, prompt=ids, echo=True, logprobs=0, max_tokens=0).choice["logprobs"]
    assert [each[str(i)]["logprob"] for i, each in zip(ids[1:], found[1:], strict=True)] == pytest.approx(
        echoed["token_logprobs"][1:], abs=1e-4
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "use_beam_search": True}, "prompt_logprobs"),
        ({"echo": True, "use_beam_search": True}, "echo"),
        ({"max_tokens": 0, "echo": True, "n": 2}, "n"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"max_tokens": 0, "use_beam_search": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
    ],
)
def test_what_does_not_go_together(tiny, fields, param):
    answer = tiny.post("/v1/completions", {"model": "toy", "prompt": TEXT} | fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_a_chat_has_no_echo_and_no_answer_of_nothing(tiny):
    base = {"model": "toy", "messages": [{"role": "user", "content": TEXT}]}
    for fields, param in (({"echo": True}, "echo"), ({"max_tokens": 0}, "max_tokens")):
        answer = tiny.post("/v1/chat/completions", base | fields)
        assert (answer.status, answer.error["param"]) == (400, param)


def test_a_prompt_as_long_as_the_context_is_scored(tiny):
    """Nothing is sampled, so no place is left for it."""
    ids = [65] * 256
    assert complete(tiny, prompt=ids, max_tokens=0, echo=True, logprobs=0).usage["prompt_tokens"] == 256
    answer = tiny.post("/v1/completions", {"model": "toy", "prompt": [*ids, 65], "max_tokens": 0, "echo": True})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
