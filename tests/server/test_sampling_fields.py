"""The fields that rule what is sampled: what they do, and what is refused by name before the engine sees it."""

import pytest

from tests.server.test_errors import checked  # noqa: F401  a fixture
from tests.server.test_protocol import chat, completion, params
from xlaserve.errors import InvalidRequest

FIELDS = {
    "min_p": 0.1,
    "presence_penalty": 1.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.2,
    "min_tokens": 3,
    "allowed_token_ids": [5, 6],
    "bad_words": ["x", "yy"],
    "logit_bias": {"5": -100, "7": 1.5},
}
ASK = pytest.mark.parametrize("ask", [completion, chat])


@ASK
def test_every_field_arrives(ask):
    found = params(ask(**FIELDS))
    for name in ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"):
        assert getattr(found, name) == FIELDS[name]
    assert (found.allowed_token_ids, found.bad_words) == ((5, 6), ("x", "yy"))
    assert found.logit_bias == ((5, -100), (7, 1.5))


@ASK
def test_what_asks_for_nothing_is_nothing(ask):
    neutral = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_tokens": 0}
    assert params(ask(**neutral, bad_words=[], logit_bias={})) == params(ask())
    assert params(ask(use_beam_search=True, **neutral, bad_words=[], logit_bias={}))


@ASK
def test_the_request_wins_over_the_checkpoints_repetition_penalty_and_min_p(ask):
    defaults = {"repetition_penalty": 1.3, "min_p": 0.2}
    assert params(ask(), **defaults).repetition_penalty == 1.3
    asked = params(ask(repetition_penalty=1, min_p=0), **defaults)
    assert (asked.repetition_penalty, asked.min_p) == (1, 0)


@ASK
@pytest.mark.parametrize(
    "fields",
    [
        *({"min_p": value} for value in (-0.1, 1.1, "0", True)),
        *({"presence_penalty": value} for value in (2.1, -2.1, "1", True)),
        *({"frequency_penalty": value} for value in (2.1, -2.1, [])),
        *({"repetition_penalty": value} for value in (0, -1, 0.001, 101, "1")),
        *({"min_tokens": value} for value in (-1, 1.5, True, "1")),
        *({"allowed_token_ids": value} for value in ([], [-1], ["1"], 5)),
        *({"bad_words": value} for value in ([""], [" "], [1], ["x"] * 1025)),
        *({"logit_bias": value} for value in ({"AI": 1}, {"-1": 5}, {"5": 200}, {"5": None}, {"5": "1"}, {"5": True})),
        *({"logit_bias": value} for value in ({"05": 1}, {"٣": 1}, {"": 1}, {"1.5": 1}, [1], {"9" * 5000: 1})),
        {"logit_bias": {str(token): 1 for token in range(1025)}},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_wrong_value_is_refused_by_name(ask, fields):
    with pytest.raises(InvalidRequest) as caught:
        params(ask(**fields))
    (field,) = fields
    assert (caught.value.param, caught.value.status) == (field, 400)
    assert field in str(caught.value)


@ASK
@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_beam_search_takes_none_of_them(ask, field):
    with pytest.raises(InvalidRequest, match="has no effect with use_beam_search") as caught:
        ask(use_beam_search=True, **{field: FIELDS[field]})
    assert caught.value.param == field


def test_report_33_min_tokens_above_max_tokens(checked):  # noqa: F811
    answer = checked.complete(min_tokens=6, max_tokens=5)
    assert (answer.status, answer.error["param"]) == (400, "min_tokens")
    assert checked.complete(min_tokens=6, max_tokens=6).status == 200


@pytest.mark.parametrize(
    "bias", [{"191222": -100}, {"AI": -100}, {"-1": 5}, {"5": 200}, {"5": None}, {"5": "x"}], ids=str
)
def test_report_36_bad_logit_bias_keys(checked, bias):  # noqa: F811
    for ask in (checked.complete, checked.chat):
        answer = ask(logit_bias=bias)
        assert (answer.status, answer.error["param"]) == (400, "logit_bias")
        assert ask(logit_bias={}).status == ask(logit_bias={"5": -100}).status == 200


@pytest.mark.parametrize("ids", [[999999], [-1], [5, 999999]])
@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
def test_report_37_ids_outside_the_vocabulary(checked, field, ids):  # noqa: F811
    for ask in (checked.complete, checked.chat):
        answer = ask(**{field: ids}, min_tokens=5)
        assert (answer.status, answer.error["param"]) == (400, field)


@pytest.mark.parametrize("top_k", [-2, 1.5, "1", True])
def test_report_29_bad_top_k(checked, top_k):  # noqa: F811
    answer = checked.complete(top_k=top_k)
    assert (answer.status, answer.error["param"]) == (400, "top_k")
    for off in (-1, 0, None, 10**6):
        assert checked.complete(top_k=off).status == 200


def test_min_tokens_and_bad_words_change_the_answer(make_live):
    server = make_live(b"hello")
    assert len(server.complete(min_tokens=9, return_token_ids=True).json["choices"][0]["token_ids"]) >= 9
    assert "l" not in server.complete(bad_words=["l"]).json["choices"][0]["text"]
    text = server.complete(bad_words=["lo"]).json["choices"][0]["text"]
    assert text.startswith("hell")
    assert "lo" not in text
    assert set(server.complete(allowed_token_ids=[65], max_tokens=4).json["choices"][0]["text"]) == {"A"}


def test_what_would_leave_no_token_is_refused(checked):  # noqa: F811
    answer = checked.complete(allowed_token_ids=[108], bad_words=["l"])
    assert (answer.status, answer.error["param"]) == (400, "allowed_token_ids")
    answer = checked.complete(allowed_token_ids=[108], stop_token_ids=[108], min_tokens=2)
    assert (answer.status, answer.error["param"]) == (400, "min_tokens")
