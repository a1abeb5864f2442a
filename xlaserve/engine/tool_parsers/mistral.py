"""[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}], or [TOOL_CALLS]f[ARGS]{"a": 1}, as Mistral's models write."""

from xlaserve.engine.tool_parsers.base import Steps, ToolParser

BEGIN = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"


class MistralParser(ToolParser):
    """In the older form one mark begins a list of calls, in the newer one each call has its own."""

    marks = (BEGIN, CALL_ID, ARGS)
    id_prefix = ""
    id_length = 9  # the templates refuse any other

    def _parse(self) -> Steps[None]:
        while (yield from self._content_until(BEGIN)):
            yield from self._space()
            if (yield from self._skip("[")):
                yield from self._list()
            else:
                yield from self._attempt(self._named_call())

    def _list(self) -> Steps[None]:
        found = yield from self._attempt(self._item())
        if found:
            while found:
                found = yield from self._next(",", self._item())
            yield from self._end_mark("]")

    def _item(self) -> Steps[None]:
        yield from self._space()
        yield from self._json_call()

    def _named_call(self) -> Steps[None]:
        name = yield from self._while(lambda char: char.isalnum() or char in "_-")
        self._check_name(name)
        if (yield from self._skip(CALL_ID)):
            yield from self._while(str.isalnum)
        yield from self._skip(ARGS)
        yield from self._space()
        yield from self._arguments(name)
        self._end_call()
