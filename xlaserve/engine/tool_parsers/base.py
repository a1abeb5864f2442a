"""What all parsers of tool calls share. Pure text: a parser knows no tokens and no request but the functions' names.

A parser is a generator that reads as if the whole text were there, and yields where it has to wait for more. So no
character is read twice, and how the text is cut into pieces makes no difference.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from xlaserve.engine.tool_parsers.json_scanner import JsonScanner

_T = TypeVar("_T")
Steps = Generator[None, None, _T]  # yields while it waits for text


class NotACall(Exception):
    """The text cannot be a call, or not go on as one."""


@dataclass(slots=True)
class CallDelta:
    """A piece of a call's arguments, JSON in the end; the first piece of each call has the function's name."""

    index: int
    arguments: str
    name: str | None = None


@dataclass(slots=True)
class ToolDelta:
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class _Content:
    """Text beside the calls, without the white space that only sets calls apart."""

    def __init__(self):
        self._new = ""
        self._space = ""  # at the end, not given yet
        self._is_empty = True
        self.has_calls = False

    def add(self, text: str) -> None:
        text = self._space + text
        words = text.rstrip()
        self._space = text[len(words) :]
        if words:
            self._new += words.lstrip() if self._is_empty and self.has_calls else words
            self._is_empty = False

    def end(self) -> None:
        if not self.has_calls:
            self._new += self._space
        self._space = ""

    def take(self) -> str:
        new, self._new = self._new, ""
        return new


class ToolParser(ABC):
    """The calls in one answer. names: of the functions that were offered; a call of any other is text.

    max_calls: those after it are left out. A call is announced once its name and something of its arguments are known:
    until then its text may still turn out to be content, from then on it stays a call, though its arguments may end
    before their time. Of text that has stopped being a call the rest is content.
    """

    marks: tuple[str, ...] = ()  # texts that some tokenizers have as special tokens
    id_prefix = "call_"  # of the ids that its calls are given
    id_length = 24  # random characters after it

    def __init__(self, names: Collection[str], *, max_calls: int | None = None):
        self.num_whole = 0  # calls whose arguments have come to their end
        self._names = frozenset(names)
        self._max_calls = max_calls
        self._num_calls = 0  # announced
        self._text = ""  # pushed,
        self._at = 0  # and read up to here
        self._has_ended = False
        self._raw: list[str] | None = None  # the text of a call that is not announced yet
        self._content = _Content()
        self._deltas: list[CallDelta] = []
        self._steps = self._parse()

    def push(self, text: str) -> ToolDelta:
        """What is certain now that `text` has come."""
        self._text = self._text[self._at :] + text
        self._at = 0
        next(self._steps, None)
        deltas, self._deltas = self._deltas, []
        return ToolDelta(self._content.take(), deltas)

    def finish(self) -> ToolDelta:
        """What was held back."""
        self._has_ended = True
        last = self.push("")
        self._content.end()
        last.content += self._content.take()
        return last

    @abstractmethod
    def _parse(self) -> Steps[None]:
        """Reads the whole answer."""

    # Reading. What is read of a possible call is remembered until the call is announced.

    def _read(self, end: int) -> str:
        """The text up to `end`."""
        piece = self._text[self._at : end]
        self._at = end
        if self._raw is not None:
            self._raw.append(piece)
        return piece

    def _more(self) -> Steps[bool]:
        """Waits until there is something to read; false at the end."""
        while self._at == len(self._text) and not self._has_ended:
            yield
        return self._at < len(self._text)

    def _content_until(self, marker: str) -> Steps[bool]:
        """Everything before the next `marker` is content; false if there is none. A call may begin with the marker."""
        while True:
            found = self._text.find(marker, self._at)
            if found >= 0:
                self._content.add(self._read(found))
                self._raw = []
                self._read(found + len(marker))
                return True
            unread = self._text[self._at :]
            longest = 0 if self._has_ended else min(len(unread), len(marker) - 1)
            held = next((n for n in range(longest, 0, -1) if marker.startswith(unread[-n:])), 0)
            self._content.add(self._read(len(self._text) - held))
            if self._has_ended:
                return False
            yield

    def _skip(self, literal: str) -> Steps[bool]:
        """Reads `literal` if it comes next."""
        while len(unread := self._text[self._at : self._at + len(literal)]) < len(literal):
            if self._has_ended or not literal.startswith(unread):
                return False
            yield
        if unread == literal:
            self._read(self._at + len(literal))
        return unread == literal

    def _expect(self, literal: str) -> Steps[None]:
        if not (yield from self._skip(literal)):
            raise NotACall

    def _while(self, fits: Callable[[str], bool]) -> Steps[str]:
        """Reads characters as long as they fit."""
        pieces = []
        while (yield from self._more()):
            end = self._at
            while end < len(self._text) and fits(self._text[end]):
                end += 1
            pieces.append(self._read(end))
            if end < len(self._text):
                break
        return "".join(pieces)

    def _space(self) -> Steps[None]:
        yield from self._while(str.isspace)

    def _json(self, first: str, take: Callable[[str], None]) -> Steps[None]:
        """One JSON value that begins with one of the characters `first`; `take` gets its text piece by piece."""
        if not (yield from self._more()) or self._text[self._at] not in first:
            raise NotACall
        scanner = JsonScanner()
        while True:
            take(self._read(scanner.feed(self._text, self._at)))
            if scanner.is_done:
                return
            if scanner.is_broken or not (yield from self._more()):
                raise NotACall

    def _string(self) -> Steps[str]:
        pieces: list[str] = []
        yield from self._json('"', pieces.append)
        return json.loads("".join(pieces))

    # Calls.

    def _attempt(self, call: Steps[None]) -> Steps[bool]:
        """Reads a call; of what is none, the text read so far is content."""
        self._raw = self._raw or []
        try:
            yield from call
            return True
        except NotACall:
            self._content.add("".join(self._raw or ()))
            return False
        finally:
            self._raw = None

    def _comes(self, literal: str) -> Steps[bool]:
        """After a call: whether `literal` comes next, perhaps after white space, which is content if it does not."""
        self._raw = []
        yield from self._space()
        found = yield from self._skip(literal)
        if not found:
            self._content.add("".join(self._raw))
            self._raw = None
        return found

    def _end_mark(self, literal: str) -> Steps[None]:
        """Leaves out what ends a call, or several; models forget it at times."""
        found = yield from self._comes(literal)
        self._raw = None
        if not found and self._has_ended and literal.startswith(self._text[self._at :]):
            self._at = len(self._text)  # the answer was cut inside it

    def _next(self, separator: str, call: Steps[None]) -> Steps[bool]:
        """Reads another call, if the separator comes next."""
        return (yield from self._comes(separator)) and (yield from self._attempt(call))

    def _check_name(self, name: str) -> None:
        if name not in self._names:
            raise NotACall

    def _announce(self, name: str, arguments: str) -> None:
        self._raw = None
        self._content.has_calls = True
        self._num_calls += 1
        self._add_arguments(arguments, name)

    def _add_arguments(self, piece: str, name: str | None = None) -> None:
        if not piece or (self._max_calls is not None and self._num_calls > self._max_calls):
            return
        if name is None and self._deltas:  # of the same call, in one push
            self._deltas[-1].arguments += piece
        else:
            self._deltas.append(CallDelta(self._num_calls - 1, piece, name))

    def _end_call(self) -> None:
        self.num_whole += self._max_calls is None or self._num_calls <= self._max_calls

    def _arguments(self, name: str) -> Steps[None]:
        """The JSON object of arguments that comes next."""
        held = ""
        announced = False

        def take(piece: str) -> None:
            nonlocal held, announced
            if announced:
                self._add_arguments(piece)
                return
            held += piece
            if len(held.rstrip()) > 1:  # a brace alone promises nothing: a key in single quotes may follow
                self._announce(name, held)
                announced = True

        yield from self._json("{", take)

    def _json_call(self) -> Steps[None]:
        """{"name": ..., "arguments": {...}}, in either order; "parameters" is another word for "arguments"."""
        name: str | None = None
        early: list[str] | None = None  # arguments that came before the name
        has_arguments = False
        yield from self._expect("{")
        yield from self._space()
        is_over = yield from self._skip("}")
        while not is_over:
            key = yield from self._string()
            yield from self._space()
            yield from self._expect(":")
            yield from self._space()
            if key == "name" and name is None:
                name = yield from self._string()
                self._check_name(name)
            elif key in ("arguments", "parameters") and not has_arguments:
                has_arguments = True
                if name is not None:
                    yield from self._arguments(name)
                else:
                    early = []
                    yield from self._json("{", early.append)
            else:
                yield from self._json('{["-0123456789tfn', lambda _: None)
            yield from self._space()
            is_over = yield from self._skip("}")
            if not is_over:
                yield from self._expect(",")
                yield from self._space()
        if name is None:
            raise NotACall
        if early is not None or not has_arguments:
            self._announce(name, "".join(early or ["{}"]))
        self._end_call()
