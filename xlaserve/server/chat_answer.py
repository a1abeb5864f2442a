"""One choice of a chat answer: its text taken apart, as parts of a message or as the deltas of a stream."""

import secrets
import string
from collections.abc import Iterable, Iterator
from typing import Any, cast

from xlaserve.engine.answer_parser import AnswerDelta, AnswerParser
from xlaserve.engine.reasoning import ReasoningTokens
from xlaserve.server.responses import (
    ChatDelta,
    ChatFinishReason,
    ChatMessage,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
)

_ID_CHARACTERS = string.ascii_letters + string.digits


class ChatAnswer:
    """`push` every piece of its text. counter: of its reasoning tokens, where the model thinks; is_named: the client
    named the function to be called.
    """

    def __init__(
        self, parser: AnswerParser, counter: ReasoningTokens | None, *, include_reasoning: bool, is_named: bool
    ):
        self._parser = parser
        self._counter = counter
        self._include_reasoning = include_reasoning
        self._is_named = is_named

    @property
    def num_reasoning_tokens(self) -> int:
        return self._counter.count if self._counter else 0

    def push(self, text: str, token_ids: Iterable[int], *, is_last: bool) -> AnswerDelta:
        if self._counter:
            self._counter.push(token_ids)
        delta = self._parser.push(text, is_last=is_last)
        if not self._include_reasoning:
            delta.reasoning = ""
        return delta

    def finish_reason(self, reason: str) -> ChatFinishReason:
        """In OpenAI's words, once all has been pushed: a call that the client named itself ends with "stop"."""
        if reason == "stop" and self._parser.has_whole_calls and not self._is_named:
            return "tool_calls"
        return cast(ChatFinishReason, reason)

    def message(self, whole: AnswerDelta) -> ChatMessage:
        calls: dict[int, FunctionCall] = {}
        for piece in whole.calls:
            call = calls.setdefault(piece.index, FunctionCall(name=piece.name or "", arguments=""))
            call.arguments += piece.arguments
        more: dict[str, Any] = {}
        if whole.reasoning:
            more["reasoning_content"] = whole.reasoning
        if calls:
            more["tool_calls"] = [
                ToolCall(id=self.new_call_id(), type="function", function=call) for call in calls.values()
            ]
        return ChatMessage(role="assistant", content=whole.content or (None if more else ""), refusal=None, **more)

    def deltas(self, new: AnswerDelta) -> Iterator[ChatDelta]:
        if new.reasoning:
            yield ChatDelta(reasoning_content=new.reasoning)
        if new.content:
            yield ChatDelta(content=new.content)
        for piece in new.calls:
            if piece.name is not None:
                function = FunctionCallDelta(name=piece.name, arguments="")
                first = ToolCallDelta(index=piece.index, id=self.new_call_id(), type="function", function=function)
                yield ChatDelta(tool_calls=[first])
            more = ToolCallDelta(index=piece.index, function=FunctionCallDelta(arguments=piece.arguments))
            yield ChatDelta(tool_calls=[more])

    def new_call_id(self) -> str:
        """In the form that the model's template asks for, as the client sends it back."""
        form = self._parser.tools
        assert form is not None
        return form.id_prefix + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(form.id_length))
