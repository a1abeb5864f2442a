"""The fields that the endpoints which generate text share."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from xlaserve.grammar import Grammar
from xlaserve.sampling_params import (
    MAX_BAD_WORDS,
    MAX_BEAM_WIDTH,
    MAX_BIAS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_LENGTH_PENALTY,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_STRINGS,
    SEED_LIMIT,
    TEXT_OPTIONS,
    BeamSearchParams,
    SamplingParams,
)
from xlaserve.scheduling_params import SchedulingParams
from xlaserve.server.protocol.strict import Strict
from xlaserve.server.protocol.structured import GuidedJson, ResponseFormat, StructuredOutputs, the_grammar

REQUEST_ID = r"^[!-~]{1,128}$"

# What a beam search takes no account of, with the values that ask for nothing.
_WITHOUT_BEAMS = {
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "min_tokens": (0,),
    "seed": (),
    "stop": ([],),
}
# What a checkpoint may have a default for, and the others.
_WITH_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WITHOUT_DEFAULTS = ("presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "min_tokens")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_token_biases(value: Any) -> Any:
    """JSON's keys are strings: only the usual writing of a number is one."""
    if not isinstance(value, dict):
        return value
    for token in value:
        if not (token.isascii() and token.isdigit() and str(int(token[:20])) == token):
            raise ValueError(f"{token[:80]!r} is no token id: keys must be integers >= 0, written as strings")
    return {int(token): bias for token, bias in value.items()}


def _true_or_false(value: Any) -> Any:
    """To a Literal, 0 is False."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


TokenId = Annotated[int, Field(ge=0)]
_Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
_Biases = Annotated[dict[str, _Bias], Field(max_length=MAX_BIASES)]  # as they are sent
_Text = Annotated[str, Field(min_length=1)]
_StopList = Annotated[list[_Text], Field(max_length=MAX_STOP_STRINGS)]
_WordList = Annotated[list[_Text], Field(max_length=MAX_BAD_WORDS)]


class NoObfuscation(Strict):
    """What stream_options may hold everywhere."""

    include_obfuscation: Annotated[Literal[False], BeforeValidator(_true_or_false)] | None = None


class StreamOptions(NoObfuscation):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # extension

    @model_validator(mode="after")
    def _statistics_are_usage(self):
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats is only allowed when include_usage is true")
        return self


class ScheduledRequest(Strict):
    """The fields of every request that the engine computes something for; SchedulingParams checks their ranges."""

    model: str
    priority: int = 0  # extension
    timeout: Annotated[float, Field(gt=0)] | None = None  # extension
    cache_salt: Annotated[str, Field(min_length=1)] | None = None  # extension

    def scheduling_params(self, tenant: str) -> SchedulingParams:
        return SchedulingParams(
            priority=self.priority, timeout=self.timeout, tenant=tenant, cache_salt=self.cache_salt or ""
        )


class PromptOptions(Strict):
    """What becomes of prompts, and how a request is called."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None  # extension
    add_special_tokens: bool | None = None  # extension
    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = None  # extension
    user: str | None = None  # no-op

    @model_validator(mode="after")
    def _prompt_is_left(self):
        if self.truncate_prompt_tokens == 0:
            raise ValueError("truncate_prompt_tokens: must be at least 1, or -1 for what the context has room for")
        return self


class TextRequest(ScheduledRequest):
    """The fields of every request for text. What depends on several is checked by SamplingParams too."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None  # extension
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # extension
    presence_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1 / MAX_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = (
        None  # extension
    )
    logit_bias: (
        Annotated[
            dict[int, _Bias],
            Field(max_length=MAX_BIASES),
            BeforeValidator(_as_token_biases, json_schema_input_type=_Biases),
        ]
        | None
    ) = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None  # extension
    bad_words: Annotated[
        _WordList, BeforeValidator(_as_list, json_schema_input_type=_Text | _WordList), Field(default_factory=list)
    ]  # extension
    min_tokens: Annotated[int, Field(ge=0)] | None = None  # extension
    seed: Annotated[int, Field(ge=-SEED_LIMIT, le=SEED_LIMIT - 1)] | None = None
    stop: Annotated[
        _StopList, BeforeValidator(_as_list, json_schema_input_type=_Text | _StopList), Field(default_factory=list)
    ]
    stop_token_ids: Annotated[list[TokenId], Field(default_factory=list)]  # extension
    ignore_eos: bool = False  # extension
    skip_special_tokens: bool = True  # extension
    spaces_between_special_tokens: bool = True  # extension
    include_stop_str_in_output: bool = False  # extension
    structured_outputs: StructuredOutputs | None = None  # extension
    stream: bool = False


class GenerationRequest(TextRequest, PromptOptions):
    """Those of completions and of chat completions."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    response_format: ResponseFormat | None = None
    guided_json: GuidedJson | None = None  # as the next three an older name for structured_outputs
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # extension
    use_beam_search: bool = False  # extension
    beam_width: Annotated[int, Field(ge=1, le=MAX_BEAM_WIDTH)] | None = None  # extension
    length_penalty: Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = None  # extension
    return_token_ids: bool = False  # extension
    return_tokens_as_token_ids: bool = False  # extension
    return_timings: bool = False  # extension
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None  # no-op

    @model_validator(mode="after")
    def _options_need_a_stream(self):
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _prompts_are_not_streamed(self):
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs: not allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _only_logprobs_show_tokens(self):
        if self.return_tokens_as_token_ids and not self.wants_logprobs:
            raise ValueError("return_tokens_as_token_ids: only allowed with logprobs")
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
        if self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs: not allowed with use_beam_search")
        for name, neutral in _WITHOUT_BEAMS.items():
            if getattr(self, name) not in (None, *neutral):
                raise ValueError(f"{name}: has no effect with use_beam_search; leave it out")
        if grammar := self.grammar:
            raise ValueError(f"{grammar.param}: not allowed with use_beam_search")
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def wants_logprobs(self) -> bool:
        raise NotImplementedError

    @property
    def grammar(self) -> Grammar | None:
        """What the output must look like. Raises InvalidRequest when more than one field says so."""
        return the_grammar(
            self.response_format,
            self.structured_outputs,
            json=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )

    def _sampling_params(self, defaults: dict[str, Any], **fields: Any) -> SamplingParams | BeamSearchParams:
        """The request's values, else the checkpoint's `defaults`, else OpenAI's. A beam search samples nothing."""
        fields |= {
            "n": 1 if self.n is None else self.n,
            "stop_token_ids": tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
            **{name: getattr(self, name) for name in TEXT_OPTIONS},
        }
        if self.use_beam_search:
            penalty = 1.0 if self.length_penalty is None else self.length_penalty
            return BeamSearchParams(beam_width=self.beam_width, length_penalty=penalty, **fields)
        asked = {name: getattr(self, name) for name in (*_WITH_DEFAULTS, *_WITHOUT_DEFAULTS)}
        chosen = defaults | {name: value for name, value in asked.items() if value is not None}
        chosen["bad_words"] = tuple(self.bad_words)
        chosen |= {"seed": self.seed, "stop": tuple(self.stop), "prompt_logprobs": self._read_of_prompts()}
        return SamplingParams(**chosen, grammar=self.grammar, **fields)

    def _read_of_prompts(self) -> int | None:
        """The alternatives of the prompt's tokens that the answer shows, None: the prompt is not scored."""
        return self.prompt_logprobs
