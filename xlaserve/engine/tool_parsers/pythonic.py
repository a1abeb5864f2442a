"""[f(a=1, b='x'), g()], as Llama 3.2 and 4 write calls: the whole answer is a list of Python calls."""

import ast
import json
import re

from xlaserve.engine.tool_parsers.base import NotACall, Steps, ToolParser

BEGIN = "<|python_start|>"
END = "<|python_end|>"
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = "\\'\"abfnrtvxuU\n"


class PythonicParser(ToolParser):
    """Arguments are literals by keyword. Each is given as JSON once it has come to its end."""

    marks = (BEGIN, END)

    def _parse(self) -> Steps[None]:
        found = yield from self._attempt(self._first_call())
        if found:
            while found:
                found = yield from self._next(",", self._call())
            yield from self._end_mark("]")
            yield from self._end_mark(END)
        while (yield from self._more()):
            self._content.add(self._read(len(self._text)))

    def _first_call(self) -> Steps[None]:
        yield from self._space()
        yield from self._skip(BEGIN)
        yield from self._space()
        yield from self._expect("[")
        yield from self._call()

    def _call(self) -> Steps[None]:
        yield from self._space()
        name = yield from self._while(lambda char: char.isalnum() or char in "_-")
        self._check_name(name)
        yield from self._expect("(")
        yield from self._space()
        written: set[str] = set()
        while not (yield from self._skip(")")):
            keyword = yield from self._while(lambda char: char.isalnum() or char == "_")
            if not keyword or keyword in written:
                raise NotACall
            yield from self._space()
            yield from self._expect("=")
            value = _as_json((yield from self._literal()))
            piece = f"{', ' if written else '{'}{json.dumps(keyword, ensure_ascii=False)}: {value}"
            if written:
                self._add_arguments(piece)
            else:
                self._announce(name, piece)
            written.add(keyword)
            if (yield from self._skip(",")):
                yield from self._space()
        if written:
            self._add_arguments("}")
        else:
            self._announce(name, "{}")
        self._end_call()

    def _literal(self) -> Steps[str]:
        """Everything up to the comma or bracket that ends the argument."""
        pieces: list[str] = []
        closers: list[str] = []
        while (yield from self._more()):
            char = self._text[self._at]
            if not closers and char in ",)":
                return "".join(pieces)
            if char in "\"'":
                pieces.append((yield from self._quoted()))
                continue
            if char in _CLOSERS:
                closers.append(_CLOSERS[char])
            elif char in ")]}" and (not closers or closers.pop() != char):
                raise NotACall
            pieces.append(self._read(self._at + 1))
        raise NotACall

    def _quoted(self) -> Steps[str]:
        quote = self._read(self._at + 1)
        pieces = [quote]
        while (yield from self._more()):
            pieces.append(self._read(self._at + 1))
            if pieces[-1] == "\\" and (yield from self._more()):
                pieces.append(self._read(self._at + 1))
            elif pieces[-1] == quote:
                return "".join(pieces)
        raise NotACall


def _as_json(literal: str) -> str:
    """Raises NotACall for what is no literal, or none that JSON can write."""
    # Python would warn of an escape that it does not know, and keep its backslash; so here it is doubled.
    literal = _ESCAPE.sub(lambda found: found[0] if found[1] in _KNOWN_ESCAPES else f"\\{found[0]}", literal.strip())
    try:
        return json.dumps(ast.literal_eval(literal), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise NotACall from None
