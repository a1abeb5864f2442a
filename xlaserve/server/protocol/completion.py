"""POST /v1/completions."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from xlaserve.sampling_params import BeamSearchParams, SamplingParams
from xlaserve.server.protocol.generation import GenerationRequest
from xlaserve.server.unsupported import COMPLETION
from xlaserve.server.validation import validate

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
COMPLETION_MAX_LOGPROBS = 5  # OpenAI's limit

Prompt = str | list[int]
PromptForms = str | list[str] | list[int] | list[list[int]]
PROMPT_FORMS = "a string, a list of strings, a list of token ids or a list of lists of token ids, none of them empty"


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _parse_prompts(value: Any) -> list[Prompt]:
    if isinstance(value, str):
        return [value]
    if _is_ids(value):
        return [value]
    is_list = isinstance(value, list) and bool(value)
    if is_list and (all(isinstance(item, str) for item in value) or all(_is_ids(item) for item in value)):
        return value
    raise ValueError(f"must be {PROMPT_FORMS}")


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[Prompt], BeforeValidator(_parse_prompts, json_schema_input_type=PromptForms)]
    logprobs: Annotated[int, Field(ge=0, le=COMPLETION_MAX_LOGPROBS)] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def sampling_params(self, defaults: dict[str, Any]) -> SamplingParams | BeamSearchParams:
        return self._sampling_params(
            defaults, max_tokens=self.max_tokens or COMPLETION_MAX_TOKENS, logprobs=self.logprobs
        )


def parse_completion(data: dict[str, Any]) -> CompletionRequest:
    return validate(CompletionRequest, data, COMPLETION)
