"""POST /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from xlaserve.server.messages import Message
from xlaserve.server.protocol.strict import Strict
from xlaserve.server.validation import validate


class TokenizeRequest(Strict):
    """POST /tokenize, as vLLM has it: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # default: true for a prompt; false for messages, whose template writes them
    add_generation_prompt: bool = True  # of messages
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self):
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: send either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


def parse_tokenize(data: dict[str, Any]) -> TokenizeRequest:
    return validate(TokenizeRequest, data, {})


def parse_detokenize(data: dict[str, Any]) -> DetokenizeRequest:
    return validate(DetokenizeRequest, data, {})
