"""POST /v1/completions."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from xlaserve.sampling_params import BeamSearchParams, SamplingParams
from xlaserve.server.protocol.generation import GenerationRequest
from xlaserve.server.unsupported import COMPLETION
from xlaserve.server.validation import validate

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
COMPLETION_MAX_LOGPROBS = 5  # OpenAI's limit
MAX_BEST_OF = 20  # OpenAI's limit

Prompt = str | list[int]
PromptForms = str | list[str] | list[int] | list[list[int]]
PROMPT_FORMS = "a string, a list of strings, a list of token ids or a list of lists of token ids, none of them empty"


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def parse_prompts(value: Any) -> list[Prompt]:
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

    prompt: Annotated[list[Prompt], BeforeValidator(parse_prompts, json_schema_input_type=PromptForms)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=COMPLETION_MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
    echo: bool = False

    @model_validator(mode="after")
    def _beams_have_no_echo(self):
        if self.echo and self.use_beam_search:
            raise ValueError("echo: not allowed with use_beam_search")
        return self

    @model_validator(mode="after")
    def _best_of_several(self):
        if self.best_of is None or self.best_of == (self.n or 1):
            return self
        if self.best_of < (self.n or 1):
            raise ValueError("best_of: must be at least n")
        if self.stream:
            raise ValueError("best_of: not allowed when stream is true, unless it is n: the best are known in the end")
        if self.use_beam_search or self.max_tokens == 0:
            other = "use_beam_search" if self.use_beam_search else "max_tokens 0"
            raise ValueError(f"best_of: not allowed with {other}; leave it out")
        return self

    @model_validator(mode="after")
    def _something_is_asked_for(self):
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise ValueError("max_tokens: 0 only with echo or prompt_logprobs: else there is nothing to answer")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def sampling_params(self, defaults: dict[str, Any]) -> SamplingParams | BeamSearchParams:
        max_tokens = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        params = self._sampling_params(defaults, max_tokens=max_tokens, logprobs=self.logprobs)
        if self.best_of is None or self.best_of == params.n:
            return params
        return replace(params, n=self.best_of, logprobs=self.logprobs or 0)  # which tell the best ones

    def _read_of_prompts(self) -> int | None:
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in wanted if count is not None), default=None)


def parse_completion(data: dict[str, Any]) -> CompletionRequest:
    return validate(CompletionRequest, data, COMPLETION)
