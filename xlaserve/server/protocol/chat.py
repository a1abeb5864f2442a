"""POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from xlaserve.sampling_params import MAX_LOGPROBS, BeamSearchParams, SamplingParams
from xlaserve.server.messages import Message
from xlaserve.server.protocol.generation import GenerationRequest
from xlaserve.server.protocol.tools import MAX_TOOLS, NamedTool, Tool, ToolChoice
from xlaserve.server.unsupported import CHAT
from xlaserve.server.validation import validate

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None  # wins over max_tokens
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None  # auto where there are tools
    parallel_tool_calls: bool | None = None  # true where there are tools
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True  # extension
    add_generation_prompt: bool = True  # extension
    continue_final_message: bool = False  # extension
    chat_template: str | None = None  # extension
    chat_template_kwargs: dict[str, Any] | None = None  # extension
    documents: list[dict[str, Any]] | None = None  # extension
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None  # extension

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self):
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        return self

    @model_validator(mode="after")
    def _the_prompt_has_one_end(self):
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message: only allowed when add_generation_prompt is false")
        if self.continue_final_message and self.messages[-1].content is None:
            raise ValueError("continue_final_message: the final message has no content to continue")
        return self

    @model_validator(mode="after")
    def _tools_fit(self):
        names = [tool.function.name for tool in self.tools or ()]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"tools: two functions are named {repeated!r}")
        if isinstance(self.tool_choice, NamedTool) and (asked := self.tool_choice.function.name) not in names:
            raise ValueError(f"tool_choice: {asked[:80]!r} is not among the tools")
        if not names and self.tool_choice not in (None, "none"):
            raise ValueError("tool_choice: only allowed when tools are specified")
        if not names and self.parallel_tool_calls is not None:
            raise ValueError("parallel_tool_calls: only allowed when tools are specified")
        return self

    @property
    def offered_tools(self) -> list[Tool]:
        """Those that the model is told of and may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs

    def sampling_params(self, defaults: dict[str, Any]) -> SamplingParams | BeamSearchParams:
        max_tokens = self.max_completion_tokens or self.max_tokens  # neither: what is left of the context
        return self._sampling_params(
            defaults, max_tokens=max_tokens, logprobs=(self.top_logprobs or 0) if self.logprobs else None
        )


def parse_chat(data: dict[str, Any]) -> ChatRequest:
    return validate(ChatRequest, data, CHAT)
