"""Tells what a model thinks from what it answers: <think>...</think>, which the prompt may have opened already."""

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from xlaserve.engine.tokenizer import Tokenizer

BEGIN = "<think>"
END = "</think>"
_TAIL_TOKENS = 16  # of a prompt, enough to hold BEGIN however it is cut


def reasoning_is_open(tokenizer: "Tokenizer", prompt_ids: list[int]) -> bool:
    """Whether the prompt ends with BEGIN, as some templates write it, so that the model goes on with its thoughts."""
    return tokenizer.decode(prompt_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip().endswith(BEGIN)


def reasoning_is_closed(tokenizer: "Tokenizer", prompt_ids: list[int]) -> bool:
    """Whether the prompt ends with END: the template has thought for the model, which is to answer at once."""
    return tokenizer.decode(prompt_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip().endswith(END)


def thinks(template: str) -> bool:
    """Whether a chat template is of a model that writes its thoughts."""
    return END in template or BEGIN in template


class ReasoningParser:
    """Splits text that comes in pieces. An answer that begins with no BEGIN, where none is open, has no reasoning.

    White space around the thoughts is nobody's, nor are the marks.
    """

    def __init__(self, *, is_open: bool):
        self.state: Literal["before", "inside", "after"] = "before"  # before: BEGIN may still come
        self.has_begun = False
        self._is_open = is_open
        self._held = ""  # what may be part of a mark, or white space at an end
        self._has_thoughts = False
        self._strips = False  # the white space before the answer

    def push(self, text: str) -> tuple[str, str]:
        """New reasoning and new answer."""
        self._held += text
        if self.state == "before":
            self._look_for_begin()
            self.has_begun = self.state == "inside"
        reasoning = self._inside() if self.state == "inside" else ""
        return reasoning, self._answer() if self.state == "after" else ""

    def finish(self) -> tuple[str, str]:
        """What was held back: a part of a mark that is none, or white space."""
        held, self._held = self._held, ""
        if self.state == "inside" or (self.state == "before" and self._is_open):
            return held.rstrip() if self._has_thoughts else held.strip(), ""
        return "", "" if self._strips else held

    def _look_for_begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(BEGIN):
            self._held = start[len(BEGIN) :]
            self.state = "inside"
        elif not BEGIN.startswith(start):
            self.state = "inside" if self._is_open else "after"

    def _inside(self) -> str:
        found = self._held.find(END)
        if found >= 0:
            thoughts, self._held = self._held[:found].rstrip(), self._held[found + len(END) :]
            self.state, self._strips = "after", True
        else:
            part = next((n for n in range(len(END) - 1, 0, -1) if self._held.endswith(END[:n])), 0)
            sure = len(self._held[: len(self._held) - part].rstrip())
            thoughts, self._held = self._held[:sure], self._held[sure:]
        if not self._has_thoughts:
            thoughts = thoughts.lstrip()
        self._has_thoughts |= bool(thoughts)
        return thoughts

    def _answer(self) -> str:
        text = self._held.lstrip() if self._strips else self._held
        self._strips = self._strips and not text
        self._held = ""
        return text


class ReasoningTokens:
    """Counts the tokens of the reasoning, its marks included, and follows where it stands, token by token.

    A token belongs to the reasoning when the reasoning has begun with it or before it and had not ended before it.
    """

    def __init__(self, tokenizer: "Tokenizer", *, is_open: bool):
        self.count = 0
        self._tokenizer = tokenizer
        self._parser = ReasoningParser(is_open=is_open)
        self._num_unsure = 0  # tokens with which it may have begun

    @property
    def state(self) -> Literal["before", "inside", "after"]:
        return self._parser.state

    def copy(self) -> "ReasoningTokens":
        twin = copy.copy(self)
        twin._parser = copy.copy(self._parser)
        return twin

    def push(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if self.state == "after":
                return
            self._parser.push(self._tokenizer.token_bytes(token_id).decode("latin-1"))  # the marks are ASCII
            self._num_unsure += 1
            if self._parser.has_begun:
                self.count, self._num_unsure = self.count + self._num_unsure, 0
