"""What the server answers: pydantic models of OpenAI's objects, with vLLM's additions.

They are written with `exclude_unset`: a field that is set appears, null included; an addition that nobody asked for is
left unset.
"""

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class Reply(BaseModel):
    def json_bytes(self) -> bytes:
        return self.model_dump_json(exclude_unset=True).encode()


class PromptTokensDetails(Reply):
    cached_tokens: int  # found in the prefix cache: their keys and values were not computed again


class CompletionTokensDetails(Reply):
    reasoning_tokens: int  # with the marks around the reasoning


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int  # the EOS token counts
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None  # once every prompt's first answer has ended
    completion_tokens_details: CompletionTokensDetails | None = None  # of models that think


class Timings(Reply):
    """Of one choice, in seconds since the request arrived."""

    queue: float | None  # to its first step
    ttft: float | None  # to its first token; null for a beam search, whose tokens are known only in the end
    total: float
    tokens_per_second: float | None  # after the first one; null with fewer than two


class CompletionLogprobs(Reply):
    """One entry per token of the text. `top_logprobs` is null where no alternatives were asked for.

    The first token of a prompt has none of either.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]  # characters from the start of the text


class PromptLogprob(Reply):
    logprob: float
    rank: int  # 1 for the likeliest of the vocabulary
    decoded_token: str


# By token id: the prompt's own token, and its alternatives. Null of the first token.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(Reply):
    """Of a whole answer and of a chunk alike."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None  # null until a stream's last chunk
    stop_reason: int | str | None = None  # the stop string or token id that ended it, or "timeout"; null for EOS
    timings: Timings | None = None  # with return_timings; of a chunk: the last
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None  # of a chunk: the first only
    token_ids: list[int] | None = None


class CompletionReply(Reply):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None  # of a chunk: set only with include_usage, and not null in the last one only


class Alternative(Reply):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobContent(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(Reply):
    content: list[TokenLogprobContent]
    refusal: None


class FunctionCall(Reply):
    name: str
    arguments: str


class ToolCall(Reply):
    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionCallDelta(Reply):
    name: str | None = None
    arguments: str


class ToolCallDelta(Reply):
    """A call's first piece has its id, its type and the name; the arguments follow in pieces."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class ChatMessage(Reply):
    role: Literal["assistant"]
    content: str | None  # null where there are only calls or reasoning
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatDelta(Reply):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(Reply):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: int | str | None = None
    timings: Timings | None = None  # with return_timings; of a chunk: the last
    token_ids: list[int] | None = None


class ChatChunkChoice(Reply):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: int | str | None = None
    timings: Timings | None = None  # with return_timings; of a chunk: the last
    token_ids: list[int] | None = None


class ChatReply(Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None  # of the first chunk


class ModelCard(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None  # tokens, prompt and answer together; null while the model is not loaded


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeReply(Reply):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(Reply):
    prompt: str
