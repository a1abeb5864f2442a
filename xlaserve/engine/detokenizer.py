"""Token ids to text, piece by piece. Joined, the pieces are what the whole list of ids decodes to.

The cost of a token does not depend on how many came before it. Knows nothing of stop strings or of requests.
"""

import codecs
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from xlaserve.engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
_UTF8_REACH = 3  # bytes of a character that may wait for its last one
_WINDOW = 6  # tokens of context that a decoder of unknown kind gets to see
_MAX_HELD_TOKENS = 16  # a window that ends in U+FFFD for longer is not waiting for a byte


Shows = Callable[[int], bool]  # whether a token gives text


class Detokenizer(Protocol):
    """The text of one request's output. Ids that the tokenizer lacks give no text."""

    def push(self, token_id: int) -> str:
        """Takes the next token and returns the text that is now certain."""
        ...

    def held_text(self) -> str:
        """Text not returned yet that would be in the output if it ended here; "" while a character is incomplete."""
        ...

    def finish(self) -> str:
        """The rest of the text; bytes that never became a character are U+FFFD."""
        ...


def make_detokenizer(
    tokenizer: "Tokenizer",
    prompt_ids: Sequence[int],
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
) -> Detokenizer:
    """The prompt decides how the output begins, but none of its text is ever returned.

    A character begun in the prompt belongs to the output once the output completes it; U+FFFD in its place does not.
    skip_special_tokens: they give no text. spaces_between_special_tokens: False leaves out the space that the joined
    kind puts between two added tokens; the others put none.
    """
    shows = partial(tokenizer.gives_text, skip_special_tokens=skip_special_tokens)
    if tokenizer.spelling.kind == "byte_level":
        return _ByteLevel(tokenizer, prompt_ids, tokenizer.special_ids if skip_special_tokens else frozenset())
    if tokenizer.spelling.kind == "byte_fallback":
        return _ByteFallback(tokenizer, prompt_ids, shows)
    if tokenizer.spelling.kind == "joined":
        return _Joined(tokenizer, prompt_ids, shows, spaces_between_special_tokens)
    return _Window(tokenizer, prompt_ids, shows)


class _ByteLevel:
    def __init__(self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], hidden: Collection[int]):
        """hidden: those that give no text."""
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail = b""
        for token_id in reversed(prompt_ids):
            if len(tail) >= _UTF8_REACH:
                break
            tail = self._bytes(token_id) + tail
        self._utf8.decode(tail)  # may start inside a character: what that gives is of the prompt, and dropped
        self._in_prompt_char = bool(self._utf8.getstate()[0])

    def push(self, token_id: int) -> str:
        return self._own(self._utf8.decode(self._bytes(token_id)))

    def held_text(self) -> str:
        return ""

    def finish(self) -> str:
        return self._own(self._utf8.decode(b"", final=True))

    def _bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden else self._tokenizer.token_bytes(token_id)

    def _own(self, text: str) -> str:
        if text and self._in_prompt_char:
            self._in_prompt_char = False
            return text.removeprefix(REPLACEMENT)
        return text


class _ByteFallback:
    def __init__(self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], shows: Shows):
        self._tokenizer = tokenizer
        self._shows = shows
        text_ids = filter(shows, reversed(prompt_ids))
        tail = list(takewhile(lambda value: value is not None, map(self._byte, text_ids)))
        self._run = bytearray(
            value for value in reversed(tail) if value is not None
        )  # bytes since the last other token
        self._num_prompt_bytes = len(self._run)
        self._strip = tokenizer.spelling.strips_first_space and not any(map(shows, prompt_ids))

    def push(self, token_id: int) -> str:
        if not self._shows(token_id):
            return ""
        byte = self._byte(token_id)
        if byte is None:
            return self._own(self._end_run() + self._tokenizer.token_bytes(token_id).decode())
        self._run.append(byte)
        return ""

    def held_text(self) -> str:
        text = self._run_text() or ""
        return text.removeprefix(" ") if self._strip else text

    def finish(self) -> str:
        return self._own(self._end_run())

    def _byte(self, token_id: int) -> int | None:
        return self._tokenizer.spelling.byte_of(self._tokenizer.token(token_id) or "")

    def _end_run(self) -> str:
        text = self._run_text()
        if text is None:
            text = REPLACEMENT * (len(self._run) - self._num_prompt_bytes)
        self._run.clear()
        self._num_prompt_bytes = 0
        return text

    def _run_text(self) -> str | None:
        """The characters of the run that the output completed; None if the run is not UTF-8."""
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            return None
        return text[len(self._run[: self._num_prompt_bytes].decode(errors="ignore")) :]

    def _own(self, text: str) -> str:
        if text and self._strip:
            self._strip = False
            return text.removeprefix(" ")
        return text


class _Joined:
    def __init__(self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], shows: Shows, spaces: bool):
        self._tokenizer = tokenizer
        self._shows = shows
        self._spaces = spaces
        last = next(filter(shows, reversed(prompt_ids)), None)
        self._is_first = last is None
        self._was_added = last in tokenizer.added_ids

    def push(self, token_id: int) -> str:
        token = self._tokenizer.token(token_id)
        if token is None or not self._shows(token_id):
            return ""
        is_added = token_id in self._tokenizer.added_ids
        if not self._spaces and is_added and self._was_added:
            text = token
        else:
            text = self._tokenizer.spelling.joined_text(token, is_first=self._is_first)
        self._is_first, self._was_added = False, is_added
        return text

    def held_text(self) -> str:
        return ""

    def finish(self) -> str:
        return ""


class _Window:
    """Decodes the last few tokens with and without the new ones; the difference is the new text."""

    def __init__(self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], shows: Shows):
        self._tokenizer = tokenizer
        self._shows = shows
        last = islice(filter(shows, reversed(prompt_ids)), _WINDOW)
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)  # those to skip never get here
        self._ids = list(last)[::-1]
        self._num_read = len(self._ids)  # tokens of the window whose text has been returned

    def push(self, token_id: int) -> str:
        if not self._shows(token_id):
            return ""
        self._ids.append(token_id)
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._ids) - self._num_read < _MAX_HELD_TOKENS:
            return ""
        self._ids = self._ids[-_WINDOW:]
        self._num_read = len(self._ids)
        return text

    def held_text(self) -> str:
        return ""

    def finish(self) -> str:
        text = self._new_text()
        self._num_read = len(self._ids)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._ids[: self._num_read])
        after = self._decode(self._ids)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        return after[sum(1 for _ in same) :]
