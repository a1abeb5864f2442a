"""Beam search over HTTP: what is answered, and what is refused because it would have no effect."""

import pytest

from tests.server.test_protocol import chat, completion
from xlaserve.errors import InvalidRequest


@pytest.mark.parametrize("send", ["complete", "chat"])
def test_the_best_answers_best_first(live, send):
    reply = getattr(live, send)(use_beam_search=True, n=2, beam_width=3, return_token_ids=True).json
    texts = [choice["text"] if send == "complete" else choice["message"]["content"] for choice in reply["choices"]]
    assert texts[0] == "hello"
    assert len({*texts}) == 2
    first = reply["choices"][0]
    assert (first["finish_reason"], first["stop_reason"], len(first["token_ids"])) == ("stop", None, 6)
    usage = reply["usage"]
    assert usage["completion_tokens"] == sum(len(choice["token_ids"]) for choice in reply["choices"])
    assert usage["prompt_tokens"] == (2 if send == "complete" else len(reply["prompt_token_ids"]))


def test_one_beam_is_greedy_and_n_is_the_width(live):
    greedy = live.complete(temperature=0, logprobs=2).json["choices"]
    assert live.complete(use_beam_search=True, logprobs=2, temperature=0).json["choices"] == greedy
    assert len(live.complete(use_beam_search=True, n=4).json["choices"]) == 4


def test_the_penalty_decides_between_short_and_long(make_live):
    """The longest answers gain by a positive one: their score is the mean, or nearer to 0 still."""
    live = make_live()
    lengths = [
        [len(choice["token_ids"]) for choice in live.complete(
            use_beam_search=True, n=3, length_penalty=penalty, return_token_ids=True).json["choices"]]
        for penalty in (-2.0, 4.0)
    ]  # fmt: skip
    assert lengths[0][0] <= lengths[1][0]
    assert lengths[0] != lengths[1]


def test_several_prompts(live):
    reply = live.complete(prompt=["hi", "you"], use_beam_search=True, n=2, return_token_ids=True).json
    assert [len(choice["prompt_token_ids"]) for choice in reply["choices"]] == [2, 2, 3, 3]


@pytest.mark.parametrize("parse", [completion, chat])
@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True},
        {"temperature": 1.0},
        {"top_p": 0.5},
        {"top_k": 3},
        {"seed": 1},
        {"stop": "x"},
    ],
    ids=str,
)
def test_what_would_have_no_effect_is_refused(parse, fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(use_beam_search=True, **fields)
    assert caught.value.param == next(iter(fields))
    parse(use_beam_search=True, temperature=0, top_p=1, top_k=0, stop=[])
    parse(use_beam_search=False, **fields)


@pytest.mark.parametrize("fields", [{"beam_width": 2}, {"length_penalty": 2.0}], ids=str)
def test_fields_of_a_search_without_one(fields):
    with pytest.raises(InvalidRequest, match="only allowed when use_beam_search is true") as caught:
        completion(**fields)
    assert caught.value.param == next(iter(fields))
    completion(length_penalty=1)


def test_too_wide(live):
    answer = live.complete(use_beam_search=True, n=11)
    assert (answer.status, answer.json["error"]["param"]) == (400, "n")
    answer = live.complete(use_beam_search=True, beam_width=11)
    assert (answer.status, answer.json["error"]["param"]) == (400, "beam_width")


def test_alternatives_of_a_chat_token(live):
    reply = live.chat(logprobs=True, top_logprobs=20, max_tokens=1).json
    assert len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 20
    assert live.chat(logprobs=True, top_logprobs=21).status == 400
    assert live.complete(logprobs=6).status == 400
