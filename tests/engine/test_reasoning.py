"""Reasoning is told from the answer, however the text is cut; its tokens are counted."""

import random

import pytest

from tests import toys
from xlaserve.engine.answer_parser import AnswerParser
from xlaserve.engine.reasoning import ReasoningParser, ReasoningTokens, reasoning_is_open, thinks
from xlaserve.engine.tool_parsers import CallDelta
from xlaserve.engine.tool_parsers.hermes import HermesParser

CASES = [
    # is_open, text, reasoning, answer
    (False, "<think>\nLet me see.\n</think>\n\nIt is 4.\n", "Let me see.", "It is 4.\n"),
    (False, " \n<think>a</think>b", "a", "b"),
    (False, "<think>\n\n</think>\n\nIt is 4.", "", "It is 4."),
    (False, "It is 4.", "", "It is 4."),
    (False, "\n It is <think>4</think> ", "", "\n It is <think>4</think> "),
    (False, "<thin", "", "<thin"),
    (False, " ", "", " "),
    (False, "<think>never ends </thin", "never ends </thin", ""),
    (False, "<think> a  b \n", "a  b", ""),
    (False, "<think>a</think> \n", "a", ""),
    (False, "<think>a</think>b</think>c", "a", "b</think>c"),
    (True, "Let me see.\n</think>\n\nIt is 4.", "Let me see.", "It is 4."),
    (True, "<think>Let me see.</think>It is 4.", "Let me see.", "It is 4."),
    (True, "</think>It is 4.", "", "It is 4."),
    (True, "a </ think> b < /think>", "a </ think> b < /think>", ""),
    (True, "<thi", "<thi", ""),
    (True, "", "", ""),
]


def split(parser: AnswerParser, pieces) -> tuple[str, str]:
    deltas = [parser.push(piece, is_last=False) for piece in pieces] + [parser.push("", is_last=True)]
    return "".join(delta.reasoning for delta in deltas), "".join(delta.content for delta in deltas)


def parser(is_open: bool) -> AnswerParser:
    return AnswerParser(ReasoningParser(is_open=is_open))


@pytest.mark.parametrize(("is_open", "text", "reasoning", "answer"), CASES, ids=str)
def test_reasoning_and_answer(is_open, text, reasoning, answer):
    assert split(parser(is_open), [text]) == (reasoning, answer)
    assert split(parser(is_open), text) == (reasoning, answer)
    last = parser(is_open).push(text, is_last=True)
    assert (last.reasoning, last.content) == (reasoning, answer)


def test_the_cuts_make_no_difference():
    rng = random.Random(0)
    bits = ["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a", "bc"]
    for _ in range(2000):
        text = "".join(rng.choice(bits) for _ in range(rng.randrange(12)))
        is_open = rng.random() < 0.5
        at = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
        pieces = [text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)]
        assert split(parser(is_open), pieces) == split(parser(is_open), [text]), (is_open, text)


def test_reasoning_is_given_as_it_comes():
    one = parser(False)
    assert one.push("<think>\nLet me", is_last=False).reasoning == "Let me"
    assert one.push(" see </thi", is_last=False).reasoning == " see"
    assert one.push("s", is_last=False).reasoning == " </this"


def test_calls_are_looked_for_after_the_reasoning_only():
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    one = AnswerParser(ReasoningParser(is_open=True), HermesParser(["f"]))
    delta = one.push(f"I could {call}.</think>\n\n{call}", is_last=True)
    assert delta.reasoning == f"I could {call}."
    assert (delta.content, delta.calls) == ("", [CallDelta(0, '{"a": 1}', "f")])
    assert one.has_whole_calls


@pytest.mark.parametrize("make", [toys.byte_level_tokenizer, toys.sentencepiece_tokenizer])
@pytest.mark.parametrize(
    ("is_open", "text", "counted"),
    [
        (False, "<think>ab</think>", "cd"),
        (True, "ab</think>", "<think>cd</think>"),
        (False, "", "ab</think>"),
        (False, " <think>ab", ""),
    ],
)
def test_the_tokens_of_the_reasoning_are_counted(make, is_open, text, counted):
    tokenizer = make()
    reasoning, answer = (tokenizer.encode(part, add_special_tokens=False) for part in (text, counted))
    counter = ReasoningTokens(tokenizer, is_open=is_open)
    for token_id in [*reasoning, *answer]:
        counter.push([token_id])
    assert counter.count == len(reasoning)


@pytest.mark.parametrize(
    ("prompt", "is_open"), [("a<think>", True), ("a<think>\n", True), ("<think>\n\n</think>\n\n", False), ("a", False)]
)
def test_the_end_of_the_prompt_tells_whether_reasoning_is_open(prompt, is_open):
    tokenizer = toys.byte_level_tokenizer()
    assert reasoning_is_open(tokenizer, tokenizer.encode(prompt)) is is_open


def test_the_template_tells_whether_a_model_thinks():
    assert thinks("{{ '<think>\\n' }}")
    assert not thinks(toys.CHAT_TEMPLATE)
