"""What requests may say: pydantic models and the functions that read them. Knows nothing of flask or of the engine.

Types are strict (true is not 1, "5" is not 5), null is the same as absent, and a field is honoured or refused: OpenAI's
no-ops (`user`, `metadata`, `store: false`, `service_tier: "auto"`) are all that is taken without effect.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from xlaserve.sampling_params import MAX_LOGPROBS, BeamSearchParams, SamplingParams
from xlaserve.scheduling_params import SchedulingParams
from xlaserve.server.messages import Message
from xlaserve.server.unsupported import CHAT, COMPLETION
from xlaserve.server.validation import validate

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
COMPLETION_MAX_LOGPROBS = 5  # OpenAI's limit

Prompt = str | list[int]
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


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# What a beam search takes no account of, with the values that ask for nothing.
_WITHOUT_BEAMS = {"temperature": (0,), "top_p": (1,), "top_k": (0, -1), "seed": (), "stop": ([],)}


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class _GenerationRequest(_Strict):
    """The fields that both endpoints share. Ranges are checked by SamplingParams and SchedulingParams."""

    model: str
    n: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # extension
    seed: int | None = None
    stop: Annotated[list[str], BeforeValidator(_as_list)] = []
    stop_token_ids: list[int] = []  # extension
    ignore_eos: bool = False  # extension
    use_beam_search: bool = False  # extension
    beam_width: int | None = None  # extension
    length_penalty: float | None = None  # extension
    return_token_ids: bool = False  # extension
    priority: int = 0  # extension
    timeout: float | None = None  # extension
    cache_salt: Annotated[str, Field(min_length=1)] | None = None  # extension
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None  # no-op
    metadata: dict[str, str] | None = None  # no-op

    @model_validator(mode="after")
    def _options_need_a_stream(self):
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _beam_search_fields(self):
        if not self.use_beam_search:
            if self.beam_width is not None:
                raise ValueError("beam_width: only allowed when use_beam_search is true")
            if self.length_penalty not in (None, 1):
                raise ValueError("length_penalty: only allowed when use_beam_search is true")
            return self
        if self.stream:
            raise ValueError("stream: not allowed with use_beam_search: no token is certain before the end")
        for name, neutral in _WITHOUT_BEAMS.items():
            if getattr(self, name) not in (None, *neutral):
                raise ValueError(f"{name}: has no effect with use_beam_search; leave it out")
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def scheduling_params(self, tenant: str) -> SchedulingParams:
        return SchedulingParams(
            priority=self.priority, timeout=self.timeout, tenant=tenant, cache_salt=self.cache_salt or ""
        )

    def _sampling_params(self, defaults: dict[str, Any], **fields: Any) -> SamplingParams | BeamSearchParams:
        """The request's values, else the checkpoint's `defaults`, else OpenAI's. A beam search samples nothing."""
        fields |= {
            "n": 1 if self.n is None else self.n,
            "stop_token_ids": tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
        }
        if self.use_beam_search:
            penalty = 1.0 if self.length_penalty is None else self.length_penalty
            return BeamSearchParams(beam_width=self.beam_width, length_penalty=penalty, **fields)
        asked = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        chosen = defaults | {name: value for name, value in asked.items() if value is not None}
        return SamplingParams(**chosen, seed=self.seed, stop=tuple(self.stop), **fields)


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[Prompt], BeforeValidator(_parse_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=COMPLETION_MAX_LOGPROBS)] | None = None

    def sampling_params(self, defaults: dict[str, Any]) -> SamplingParams | BeamSearchParams:
        return self._sampling_params(
            defaults, max_tokens=self.max_tokens or COMPLETION_MAX_TOKENS, logprobs=self.logprobs
        )


class ChatRequest(_GenerationRequest):
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


class TokenizeRequest(_Strict):
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


class DetokenizeRequest(_Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


def parse_completion(data: dict[str, Any]) -> CompletionRequest:
    return validate(CompletionRequest, data, COMPLETION)


def parse_chat(data: dict[str, Any]) -> ChatRequest:
    return validate(ChatRequest, data, CHAT)


def parse_tokenize(data: dict[str, Any]) -> TokenizeRequest:
    return validate(TokenizeRequest, data, {})


def parse_detokenize(data: dict[str, Any]) -> DetokenizeRequest:
    return validate(DetokenizeRequest, data, {})
