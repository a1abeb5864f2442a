"""POST /v1/chat/completions."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from xlaserve.sampling_params import MAX_LOGPROBS, BeamSearchParams, SamplingParams
from xlaserve.server.messages import Message
from xlaserve.server.protocol.generation import GenerationRequest
from xlaserve.server.unsupported import CHAT
from xlaserve.server.validation import validate


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None  # wins over max_tokens
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self):
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        return self

    def sampling_params(self, defaults: dict[str, Any]) -> SamplingParams | BeamSearchParams:
        max_tokens = self.max_completion_tokens or self.max_tokens  # neither: what is left of the context
        return self._sampling_params(
            defaults, max_tokens=max_tokens, logprobs=(self.top_logprobs or 0) if self.logprobs else None
        )


def parse_chat(data: dict[str, Any]) -> ChatRequest:
    return validate(ChatRequest, data, CHAT)
