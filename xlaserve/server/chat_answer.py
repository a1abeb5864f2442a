"""One choice of a chat answer: its text taken apart, as parts of a message or as the deltas of a stream."""

import secrets
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from xlaserve.engine.answer_parser import AnswerDelta, AnswerParser
from xlaserve.engine.reasoning import BEGIN, END, ReasoningParser, ReasoningTokens, reasoning_is_open
from xlaserve.engine.tool_parsers import PARSERS, ToolParser
from xlaserve.errors import InvalidRequest
from xlaserve.sampling_params import BeamSearchParams, SamplingParams
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.protocol.tools import NamedTool
from xlaserve.server.responses import (
    ChatDelta,
    ChatFinishReason,
    ChatMessage,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

REASONING_MARKS = (BEGIN, END)
NO_BEAMS = "not allowed with use_beam_search; leave one of them out"
_ID_CHARACTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class AnswerForm:
    """How the answers to one request are taken apart; `answer()` for each choice."""

    service: "GenerationService"
    asked: ChatRequest
    prompt_ids: list[int]

    def __post_init__(self):
        if self.asked.offered_tools and self.service.info.tool_parser is None:
            raise InvalidRequest(
                "This server does not know how the model writes tool calls, for its chat template does not tell. Start "
                f"it with --tool-call-parser ({', '.join(PARSERS)}), leave tools out, or send tool_choice 'none'.",
                param="tools",
            )

        if self.asked.thinking_token_budget is not None and not self.thinks:
            raise InvalidRequest(
                "This server does not know of reasoning of this model, for its chat template does not tell. Leave "
                "thinking_token_budget out, or start the server with --reasoning-parser think.",
                param="thinking_token_budget",
            )

    @property
    def thinks(self) -> bool:
        return self.service.info.thinks

    def sampling_params(self) -> SamplingParams | BeamSearchParams:
        """What the request asks for, and what its answer can only be read with."""
        asked, info, special_id = self.asked, self.service.info, self.service.tokenizer.special_id
        params = asked.sampling_params(info.sampling_defaults)
        marks = REASONING_MARKS if self.thinks else ()
        if asked.offered_tools:
            marks += PARSERS[cast(str, info.tool_parser)].marks
        if any(special_id(mark) is not None for mark in marks):  # else it would be left out
            params = replace(params, skip_special_tokens=False)
        if isinstance(params, BeamSearchParams):
            if asked.thinking_token_budget is not None:
                raise InvalidRequest(f"thinking_token_budget: {NO_BEAMS}", param="thinking_token_budget")
            return params
        return replace(params, reasoning=self.thinks, thinking_token_budget=asked.thinking_token_budget)

    def answer(self) -> "ChatAnswer":
        if not self.thinks:
            return ChatAnswer(self, AnswerParser(tools=self._tool_parser()), None)
        is_open = reasoning_is_open(self.service.tokenizer, self.prompt_ids)
        counter = ReasoningTokens(self.service.tokenizer, is_open=is_open)
        return ChatAnswer(self, AnswerParser(ReasoningParser(is_open=is_open), self._tool_parser()), counter)

    def _tool_parser(self) -> ToolParser | None:
        names = [tool.function.name for tool in self.asked.offered_tools]
        if not names:
            return None
        max_calls = 1 if self.asked.parallel_tool_calls is False else None
        return PARSERS[cast(str, self.service.info.tool_parser)](names, max_calls=max_calls)


class ChatAnswer:
    """Of one choice. `push` every piece of its text; `counter`: of its reasoning tokens, where the model thinks."""

    def __init__(self, form: AnswerForm, parser: AnswerParser, counter: ReasoningTokens | None):
        self._form = form
        self._parser = parser
        self._counter = counter

    @property
    def num_reasoning_tokens(self) -> int:
        return self._counter.count if self._counter else 0

    def push(self, text: str, token_ids: Iterable[int], *, is_last: bool) -> AnswerDelta:
        if self._counter:
            self._counter.push(token_ids)
        delta = self._parser.push(text, is_last=is_last)
        if not self._form.asked.include_reasoning:
            delta.reasoning = ""
        return delta

    def finish_reason(self, reason: str) -> ChatFinishReason:
        """In OpenAI's words, once all has been pushed: a call that the client named itself ends with "stop"."""
        if (
            reason == "stop"
            and self._parser.has_whole_calls
            and not isinstance(self._form.asked.tool_choice, NamedTool)
        ):
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
                ToolCall(id=self._call_id(), type="function", function=call) for call in calls.values()
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
                first = ToolCallDelta(index=piece.index, id=self._call_id(), type="function", function=function)
                yield ChatDelta(tool_calls=[first])
            more = ToolCallDelta(index=piece.index, function=FunctionCallDelta(arguments=piece.arguments))
            yield ChatDelta(tool_calls=[more])

    def _call_id(self) -> str:
        """In the form that the model's template asks for, as the client sends it back."""
        form = self._parser.tools
        assert form is not None
        return form.id_prefix + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(form.id_length))
