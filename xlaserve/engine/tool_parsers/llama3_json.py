"""{"name": "f", "parameters": {"a": 1}}, as Llama 3 writes calls: the whole answer, or what follows <|python_tag|>."""

from xlaserve.engine.tool_parsers.base import Steps, ToolParser

TAG = "<|python_tag|>"


class Llama3JsonParser(ToolParser):
    """Several calls are set apart by semicolons."""

    marks = (TAG,)

    def _parse(self) -> Steps[None]:
        yield from self._calls()
        while (yield from self._content_until(TAG)):
            yield from self._calls()

    def _calls(self) -> Steps[None]:
        found = yield from self._attempt(self._call())
        while found:
            found = yield from self._next(";", self._call())

    def _call(self) -> Steps[None]:
        yield from self._space()
        yield from self._json_call()
