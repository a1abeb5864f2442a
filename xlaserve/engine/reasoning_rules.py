"""Constraints on an answer that begins with reasoning: how long that may be, and that a grammar begins after it."""

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xlaserve.core.constraint import AllOf, Constraint
from xlaserve.engine.reasoning import BEGIN, END, ReasoningTokens, reasoning_is_closed, reasoning_is_open

if TYPE_CHECKING:
    from xlaserve.engine.tokenizer import Tokenizer


def _mask(token_ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """int32 [ceil(V / 32)] with the bits of these tokens."""
    bits = np.zeros(-(-vocab_size // 32) * 32, bool)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


class ThinkingBudget:
    """After `budget` tokens of reasoning, the mark that begins it included, nothing but the mark that ends it."""

    def __init__(self, tokenizer: "Tokenizer", budget: int, vocab_size: int, *, is_open: bool):
        self._tokens = ReasoningTokens(tokenizer, is_open=is_open)
        self._budget = budget
        self._is_open = is_open
        self._end = tokenizer.encode(END, add_special_tokens=False)
        self._num_matched = 0  # tokens of the mark that the output ends with
        self._vocab_size = vocab_size

    @property
    def _is_over(self) -> bool:
        begun = self._tokens.state == "inside" or (self._tokens.state == "before" and self._is_open)
        return begun and self._tokens.count >= self._budget

    def advance(self, token_id: int) -> None:
        goes_on = token_id == self._end[self._num_matched]
        self._num_matched = (self._num_matched + 1 if goes_on else int(token_id == self._end[0])) % len(self._end)
        self._tokens.push([token_id])

    def mask(self) -> np.ndarray | None:
        return _mask([self._end[self._num_matched]], self._vocab_size) if self._is_over else None

    def forced(self) -> Sequence[int]:
        return ()

    def copy(self) -> "ThinkingBudget":
        twin = copy.copy(self)
        twin._tokens = self._tokens.copy()
        return twin


class AfterReasoning:
    """`inner` rules what comes after the reasoning. Where the prompt has not opened it, there may be none.

    Whether there is one is told by the first token, which begins it if it is the whole mark; a tokenizer without a
    token for it has to open it in its prompts.
    """

    def __init__(self, tokenizer: "Tokenizer", inner: Constraint, vocab_size: int, *, is_open: bool):
        begin = tokenizer.encode(BEGIN, add_special_tokens=False)
        self._begin_id = begin[0] if len(begin) == 1 else None
        self._tokens = ReasoningTokens(tokenizer, is_open=is_open)
        self._inner = inner
        self._is_open = is_open  # nothing has come yet, or the reasoning has not ended
        self._may_open = not is_open and self._begin_id is not None
        self._vocab_size = vocab_size

    def advance(self, token_id: int) -> None:
        if self._may_open and token_id == self._begin_id:
            self._is_open = True
        elif not self._is_open:
            self._inner.advance(token_id)
        self._may_open = False
        if self._is_open:
            self._tokens.push([token_id])
            self._is_open = self._tokens.state != "after"

    def mask(self) -> np.ndarray | None:
        if self._is_open:
            return None
        mask = self._inner.mask()
        if mask is None or not self._may_open:
            return mask
        assert self._begin_id is not None
        return mask | _mask([self._begin_id], self._vocab_size)

    def forced(self) -> Sequence[int]:
        return () if self._is_open or self._may_open else self._inner.forced()

    def copy(self) -> "AfterReasoning":
        twin = copy.copy(self)
        twin._tokens, twin._inner = self._tokens.copy(), self._inner.copy()
        return twin


def with_reasoning(
    tokenizer: "Tokenizer", prompt_ids: list[int], vocab_size: int, *, budget: int | None, answer: Constraint | None
) -> Constraint | None:
    """What rules an output that may begin with reasoning, unless the prompt says that it does not.

    budget: tokens of the reasoning at most. answer: what rules the rest.
    """
    if reasoning_is_closed(tokenizer, prompt_ids):
        return answer
    is_open = reasoning_is_open(tokenizer, prompt_ids)
    rules: list[Constraint] = []
    if budget is not None:
        rules.append(ThinkingBudget(tokenizer, budget, vocab_size, is_open=is_open))
    if answer is not None:
        rules.append(AfterReasoning(tokenizer, answer, vocab_size, is_open=is_open))
    return AllOf(rules) if len(rules) > 1 else next(iter(rules), None)
