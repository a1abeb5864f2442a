"""Reads one JSON value that comes in pieces of any size, each character once."""

import re
from collections.abc import Callable

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')  # inside a string
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NUMBER_CHARACTERS = "0123456789+-.eE"


class JsonScanner:
    """`is_done` after the value's last character, `is_broken` at the first one with which it cannot be JSON."""

    def __init__(self):
        self.is_done = False
        self.is_broken = False
        self._closers: list[str] = []  # of the containers that are open
        self._read: Callable[[str], bool] = self._value  # takes one character: whether it is used up
        self._in_key = False
        self._rest = ""  # of a word; of a number what has been read

    def feed(self, text: str, at: int) -> int:
        """Reads on from text[at]; the index of the first character that is not part of the value, or len(text)."""
        while at < len(text) and not (self.is_done or self.is_broken):
            if self._read == self._string:
                plain = _PLAIN.match(text, at)
                assert plain is not None  # it matches nothing, too
                at = plain.end()
                if at == len(text):
                    break
            at += self._read(text[at])
        return at

    def _break(self) -> bool:
        self.is_broken = True
        return False

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char == '"':
            self._in_key, self._read = False, self._string
        elif char in "{[":
            self._closers.append("}" if char == "{" else "]")
            self._read = self._first_key if char == "{" else self._first_item
        elif char in "-0123456789":
            self._rest, self._read = char, self._number
        elif char in "tfn":
            self._rest, self._read = {"t": "rue", "f": "alse", "n": "ull"}[char], self._word
        else:
            return self._break()
        return True

    def _end_value(self) -> None:
        self._read = self._after
        self.is_done = not self._closers

    def _first_item(self, char: str) -> bool:
        if char in _SPACE or char == "]":
            return self._after(char)
        self._read = self._value
        return False

    def _first_key(self, char: str) -> bool:
        return self._after(char) if char in _SPACE or char == "}" else self._key(char)

    def _key(self, char: str) -> bool:
        if char == '"':
            self._in_key, self._read = True, self._string
            return True
        return char in _SPACE or self._break()

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._read = self._value
            return True
        return char in _SPACE or self._break()

    def _after(self, char: str) -> bool:
        """A value in a container."""
        if char == self._closers[-1]:
            self._closers.pop()
            self._end_value()
            return True
        if char == "," and self._read == self._after:
            self._read = self._key if self._closers[-1] == "}" else self._value
            return True
        return char in _SPACE or self._break()

    def _string(self, char: str) -> bool:
        if char == '"':
            if self._in_key:
                self._read = self._colon
            else:
                self._end_value()
            return True
        self._read = self._escape
        return char == "\\" or self._break()

    def _escape(self, char: str) -> bool:
        if char == "u":
            self._rest, self._read = "", self._hex
            return True
        self._read = self._string
        return char in '"\\/bfnrt' or self._break()

    def _hex(self, char: str) -> bool:
        self._rest += char
        if len(self._rest) == 4:
            self._read = self._string
        return char in "0123456789abcdefABCDEF" or self._break()

    def _word(self, char: str) -> bool:
        if char != self._rest[0]:
            return self._break()
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return True

    def _number(self, char: str) -> bool:
        if char in _NUMBER_CHARACTERS:
            self._rest += char
            return True
        if not _NUMBER.fullmatch(self._rest):
            return self._break()
        self._end_value()
        return False
