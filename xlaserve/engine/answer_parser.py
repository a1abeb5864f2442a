"""The parts of one answer: what was thought, what is said, which functions are called. Pure text."""

from collections.abc import Collection
from dataclasses import dataclass, field

from xlaserve.engine.reasoning import ReasoningParser
from xlaserve.engine.tool_parsers import CallDelta, ToolParser


@dataclass(slots=True)
class AnswerDelta:
    reasoning: str = ""
    content: str = ""
    calls: Collection[CallDelta] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.reasoning or self.content or self.calls)


class AnswerParser:
    """Calls are looked for in what comes after the reasoning. Without parsers everything is content."""

    def __init__(self, reasoning: ReasoningParser | None = None, tools: ToolParser | None = None):
        self.tools = tools
        self._reasoning = reasoning

    @property
    def has_whole_calls(self) -> bool:
        return self.tools is not None and self.tools.num_whole > 0

    def push(self, text: str, *, is_last: bool) -> AnswerDelta:
        """What is certain now that `text` has come; with the last text, all that was held back."""
        thought, said = self._reasoning.push(text) if self._reasoning else ("", text)
        if is_last and self._reasoning:
            held_thought, held_answer = self._reasoning.finish()
            thought, said = thought + held_thought, said + held_answer
        if self.tools is None:
            return AnswerDelta(thought, said)
        found = self.tools.push(said)
        content, calls = found.content, found.calls
        if is_last:
            held = self.tools.finish()
            content, calls = content + held.content, calls + held.calls
        return AnswerDelta(thought, content, calls)
