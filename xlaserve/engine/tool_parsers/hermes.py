"""<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>, as Hermes and Qwen write calls."""

from xlaserve.engine.tool_parsers.base import Steps, ToolParser

BEGIN = "<tool_call>"
END = "</tool_call>"


class HermesParser(ToolParser):
    """The end mark may be missing: some models leave the last one out."""

    marks = (BEGIN, END)

    def _parse(self) -> Steps[None]:
        while (yield from self._content_until(BEGIN)):
            if (yield from self._attempt(self._call())):
                yield from self._end_mark(END)

    def _call(self) -> Steps[None]:
        yield from self._space()
        yield from self._json_call()
