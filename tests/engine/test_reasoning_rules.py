"""A budget ends the reasoning, and what rules the answer begins after it."""

import numpy as np
import pytest

from tests import toys
from tests.engine.test_constraints import SumRule, bits
from xlaserve.engine.reasoning_rules import AfterReasoning, ThinkingBudget, with_reasoning

THINK = "<think>"


def tokenizer(*, with_marks: bool):
    vocabulary = toys.byte_level_vocabulary()
    if with_marks:
        vocabulary.backend.add_tokens([THINK, "</think>"])
    return toys.as_tokenizer(vocabulary)


def ids_in(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("with_marks", [True, False], ids=["one token", "several tokens"])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 3, 20])
def test_a_budget_forces_the_end_and_only_that(with_marks, is_open, budget):
    tok = tokenizer(with_marks=with_marks)
    begin, end, more = ([*tok.encode(text)] for text in (THINK, "</think>", "abcdefghij"))
    rule = ThinkingBudget(tok, budget, tok.vocab_size, is_open=is_open)
    wanted = [*([] if is_open else begin), *more, *end, *more]
    said: list[int] = []
    while len(said) < len(wanted) + len(end):
        mask = rule.mask()
        said.append(wanted[len(said)] if mask is None else ids_in(mask)[0])
        assert mask is None or len(ids_in(mask)) == 1
        rule.advance(said[-1])
        if said[-len(end) :] == end:
            break
    thought = min(max(budget, 0 if is_open else len(begin)), len(wanted) - len(end) - len(more))
    assert said == [*wanted[:thought], *end]
    for token_id in more:
        assert rule.mask() is None
        rule.advance(token_id)


def test_a_budget_has_no_effect_on_an_answer_without_reasoning():
    tok = tokenizer(with_marks=True)
    rule = ThinkingBudget(tok, 2, tok.vocab_size, is_open=False)
    for token_id in tok.encode("no thoughts at all"):
        assert rule.mask() is None
        rule.advance(token_id)


def test_copies_count_by_themselves():
    tok = tokenizer(with_marks=True)
    rule = ThinkingBudget(tok, 2, tok.vocab_size, is_open=True)
    rule.advance(ord("a"))
    twin = rule.copy()
    twin.advance(ord("b"))
    assert rule.mask() is None
    assert twin.mask() is not None


def make_after(tok, inner: SumRule, *, is_open: bool) -> AfterReasoning:
    return AfterReasoning(tok, inner, tok.vocab_size, is_open=is_open)


@pytest.mark.parametrize("with_marks", [True, False], ids=["one token", "several tokens"])
def test_a_rule_begins_after_reasoning_that_the_prompt_has_opened(with_marks):
    tok = tokenizer(with_marks=with_marks)
    inner = SumRule(vocab_size=tok.vocab_size)
    rule = make_after(tok, inner, is_open=True)
    for token_id in tok.encode("abc</think>"):
        assert rule.mask() is None
        rule.advance(token_id)
    assert inner.seen == []
    assert (rule.mask() == inner.mask()).all()
    rule.advance(7)
    assert inner.seen == [7]


def test_a_rule_begins_after_reasoning_that_the_output_has_opened():
    tok = tokenizer(with_marks=True)
    inner = SumRule(vocab_size=tok.vocab_size)
    rule = make_after(tok, inner, is_open=False)
    (begin,) = tok.encode(THINK)
    assert ids_in(rule.mask()) == sorted({begin, *ids_in(inner.mask())})
    for token_id in tok.encode("<think>abc</think>"):
        rule.advance(token_id)
    assert inner.seen == []
    assert (rule.mask() == inner.mask()).all()


def test_a_rule_begins_at_once_where_there_is_no_reasoning():
    tok = tokenizer(with_marks=True)
    inner = SumRule(vocab_size=tok.vocab_size)
    rule = make_after(tok, inner, is_open=False)
    rule.advance(3)
    twin = rule.copy()
    twin.advance(4)
    assert inner.seen == [3]
    assert (rule.mask() == bits(inner.allows, tok.vocab_size)).all()
    without_mark = tokenizer(with_marks=False)
    assert (make_after(without_mark, inner, is_open=False).mask() == inner.mask()).all()


def test_the_prompt_tells_which_rules_there_are():
    tok = tokenizer(with_marks=True)
    inner = SumRule(vocab_size=tok.vocab_size)

    def rules(prompt: str, **options):
        return with_reasoning(tok, tok.encode(prompt), tok.vocab_size, **{"budget": None, "answer": None} | options)

    assert rules("a<think>\n") is None
    assert rules("a", answer=inner, budget=3).mask() is not None
    assert rules("a<think>", answer=inner, budget=3).mask() is None
    assert rules("a<think>\n\n</think>\n\n", answer=inner, budget=3) is inner
