"""What the answer to a chat request is made of: how it is read, and what it has to keep to for that."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from xlaserve.engine.answer_parser import AnswerParser
from xlaserve.engine.reasoning import BEGIN, END, ReasoningParser, ReasoningTokens, reasoning_is_open
from xlaserve.engine.tool_parsers import PARSERS, ToolParser
from xlaserve.engine.tool_parsers.grammar import ANY_ARGUMENTS, call_grammar, constrained_form
from xlaserve.errors import InvalidRequest
from xlaserve.grammar import Grammar
from xlaserve.sampling_params import BeamSearchParams, SamplingParams
from xlaserve.server.chat_answer import ChatAnswer
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.protocol.tools import NamedTool, Tool

if TYPE_CHECKING:
    from xlaserve.engine.model_info import ModelInfo
    from xlaserve.engine.tokenizer import Tokenizer

_NO_PARSER = (
    "This server does not know how the model writes tool calls, for its chat template does not tell. Start it with "
    f"--tool-call-parser ({', '.join(PARSERS)}), leave tools out, or send tool_choice 'none'."
)
_NO_REASONING = (
    "This server does not know of reasoning of this model, for its chat template does not tell. Leave "
    "thinking_token_budget out, or start the server with --reasoning-parser think."
)
_NO_STRICT_AUTO = (
    "tools: calls that this model writes in Python cannot be held to a schema among other text. Leave strict out, or "
    "send tool_choice 'required' or a function's name."
)


class ModelText(Protocol):
    """What is needed of a model to read what it says: no engine."""

    @property
    def info(self) -> "ModelInfo": ...

    @property
    def tokenizer(self) -> "Tokenizer": ...


@dataclass(frozen=True)
class AnswerForm:
    """Of one request. `answer()` reads one choice. Raises InvalidRequest for what this model cannot do."""

    model: ModelText
    asked: ChatRequest
    prompt_ids: list[int]
    data: dict[str, Any]  # the JSON that `asked` was parsed from

    def __post_init__(self):
        info = self.model.info
        if self.asked.offered_tools and info.tool_parser is None:
            raise InvalidRequest(_NO_PARSER, param="tools")
        if self.asked.thinking_token_budget is not None and not info.thinks:
            raise InvalidRequest(_NO_REASONING, param="thinking_token_budget")

    @property
    def thinks(self) -> bool:
        return self.model.info.thinks

    @property
    def _must_call(self) -> bool:
        return self.asked.tool_choice == "required" or self._is_named

    @property
    def _is_named(self) -> bool:
        return isinstance(self.asked.tool_choice, NamedTool)

    @property
    def _callable(self) -> list[Tool]:
        """The tools that the model may call, of those that it is told of."""
        choice, tools = self.asked.tool_choice, self.asked.offered_tools
        if isinstance(choice, NamedTool):
            return [tool for tool in tools if tool.function.name == choice.function.name]
        return tools

    @property
    def _parser(self) -> str:
        assert self.model.info.tool_parser is not None
        return constrained_form(self.model.info.tool_parser) if self._must_call else self.model.info.tool_parser

    @property
    def _parallel(self) -> bool:
        return self.asked.parallel_tool_calls is not False and not self._is_named

    def sampling_params(self) -> SamplingParams | BeamSearchParams:
        """What the request asks for, and what the answer has to keep to."""
        asked, special_id = self.asked, self.model.tokenizer.special_id
        params = asked.sampling_params(self.model.info.sampling_defaults)
        marks = (BEGIN, END) if self.thinks else ()
        marks += PARSERS[self._parser].marks if asked.offered_tools else ()
        if any(special_id(mark) is not None for mark in marks):  # else they would be left out of the text
            params = replace(params, skip_special_tokens=False)
        grammar = self._grammar()
        if isinstance(params, BeamSearchParams):
            for field, value in (("thinking_token_budget", asked.thinking_token_budget), ("tool_choice", grammar)):
                if value is not None:
                    message = f"{field}: not allowed with use_beam_search; leave one of them out"
                    raise InvalidRequest(message, param=field)
            return params
        more: dict[str, Any] = {"reasoning": self.thinks, "thinking_token_budget": asked.thinking_token_budget}
        if asked.offered_tools and params.grammar is not None:
            field = params.grammar.param
            message = f"{field}: a tool call would not keep to it. Leave it out, or send tool_choice 'none'."
            raise InvalidRequest(message, param=field)
        if grammar is not None:
            more["grammar"] = grammar
        return replace(params, **more)

    def _grammar(self) -> Grammar | None:
        """For calls that must be made, and for those of strict functions, which must be right where they are made."""
        strict = any(tool.function.strict for tool in self._callable)
        if not (self._must_call or strict):
            return None
        if self._parser == "pythonic":
            raise InvalidRequest(_NO_STRICT_AUTO, param="tools")
        functions = {
            tool.function.name: tool.function.parameters if self._must_call or tool.function.strict else ANY_ARGUMENTS
            for tool in self._callable
        }
        tokenizer = self.model.tokenizer
        text = call_grammar(
            self._parser,
            tokenizer.chat_template,
            functions,
            must_call=self._must_call,
            parallel=self._parallel,
            special_id=tokenizer.special_id,
        )
        return Grammar("grammar", text, "tools")

    def answer(self) -> ChatAnswer:
        reasoning = counter = None
        if self.thinks:
            is_open = reasoning_is_open(self.model.tokenizer, self.prompt_ids)
            reasoning = ReasoningParser(is_open=is_open)
            counter = ReasoningTokens(self.model.tokenizer, is_open=is_open)
        return ChatAnswer(
            AnswerParser(reasoning, self._tool_parser()),
            counter,
            include_reasoning=self.asked.include_reasoning,
            is_named=self._is_named,
        )

    def _tool_parser(self) -> ToolParser | None:
        names = [tool.function.name for tool in self._callable]
        return PARSERS[self._parser](names, max_calls=None if self._parallel else 1) if names else None
