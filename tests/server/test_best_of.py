"""best_of: the likeliest of several answers, and with what it does not go."""

import pytest

WITH = {"best_of": 3, "temperature": 1, "seed": 5, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture
def toy(make_live):
    """A model of arithmetic: it says anything, a token's logprob being -id / 1000."""
    return make_live(next_token=None)


def likeliest(choices: list[dict], number: int) -> list[dict]:
    return sorted(choices, key=lambda choice: sum(choice["token_ids"]) / len(choice["token_ids"]))[:number]


def test_of_each_prompt_the_likeliest_per_token(toy):
    asked = WITH | {"prompt": ["ab", "cd"], "return_token_ids": True, "best_of": None}
    drawn = toy.complete(**asked, n=3).json
    best = toy.complete(**asked | {"best_of": 3}).json
    expected = [likeliest(drawn["choices"][first : first + 3], 1)[0]["token_ids"] for first in (0, 3)]
    assert [choice["token_ids"] for choice in best["choices"]] == expected
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert [choice["prompt_token_ids"] for choice in best["choices"]] == [[*b"ab"], [*b"cd"]]
    assert best["usage"]["completion_tokens"] == drawn["usage"]["completion_tokens"] == 36
    assert best["usage"]["prompt_tokens"] == drawn["usage"]["prompt_tokens"] == 4


def test_the_logprobs_that_tell_them_are_shown_where_they_are_asked_for(toy):
    assert toy.complete(**WITH).json["choices"][0]["logprobs"] is None
    shown = toy.complete(**WITH, logprobs=2, echo=True).json["choices"][0]["logprobs"]
    assert len(shown["tokens"]) == 2 + 6
    assert shown["token_logprobs"][0] is None


def test_as_many_as_are_told_is_no_choice(toy):
    assert (
        toy.complete(**WITH | {"n": 3}).json["choices"]
        == toy.complete(**WITH | {"n": 3, "best_of": None}).json["choices"]
    )
    assert toy.complete(**WITH | {"n": 3}, stream=True).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 4},
        {"stream": True},
        {"use_beam_search": True, "temperature": 0, "seed": None},
        {"max_tokens": 0, "echo": True},
    ],
)
def test_what_does_not_go_together(toy, fields):
    answer = toy.complete(**WITH | fields)
    assert (answer.status, answer.error["param"]) == (400, "best_of")


def test_openai_has_it_for_completions_only(toy):
    answer = toy.chat(best_of=2)
    assert (answer.status, answer.error["param"]) == (400, "best_of")
    assert toy.chat(best_of=1).status == 200
