"""What /v1/responses answers: pydantic models of OpenAI's objects, and of the events of a stream."""

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from xlaserve.server.responses import Reply, TokenLogprobContent
from xlaserve.server.responses_api.items import Status


class OutputText(Reply):
    type: Literal["output_text"]
    text: str
    annotations: list[None]  # there are none
    logprobs: list[TokenLogprobContent] | None = None  # of an answer's text, where they are asked for


class Refusal(Reply):  # only in what a client has sent
    type: Literal["refusal"]
    refusal: str


class MessageItem(Reply):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[Annotated[OutputText | Refusal, Field(discriminator="type")]]


class ReasoningText(Reply):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(Reply):  # only in what a client has sent
    type: Literal["summary_text"]
    text: str


class ReasoningItem(Reply):
    id: str
    type: Literal["reasoning"]
    summary: list[SummaryText]
    content: list[ReasoningText]
    status: Status


class FunctionCallItem(Reply):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


class InputText(Reply):
    type: Literal["input_text"]
    text: str


class InputMessageItem(Reply):
    id: str
    type: Literal["message"]
    role: Literal["user", "system", "developer"]
    status: Status
    content: list[InputText]


class FunctionOutputItem(Reply):
    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: list[InputText]
    status: Status


OutputItem = MessageItem | ReasoningItem | FunctionCallItem
AnyItem = InputMessageItem | MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem


class InputTokensDetails(Reply):
    cached_tokens: int  # found in the prefix cache
    cache_write_tokens: int  # 0: the prefix cache is nothing that is paid for


class OutputTokensDetails(Reply):
    reasoning_tokens: int


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int  # the EOS token counts
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Reply):
    code: Literal["server_error"]
    message: str


class IncompleteDetails(Reply):
    reason: Literal["max_output_tokens"]


class ResponseReply(Reply):
    """What follows `output` is as it was asked for, defaults filled in."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None  # null with status incomplete: its `timeout` was over
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class ResponseDeleted(Reply):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class _Event(Reply):
    sequence_number: int  # from 0


class ResponseEvent(_Event):
    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseReply


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _OfItem(_Event):
    item_id: str
    output_index: int


class PartEvent(_OfItem):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText | ReasoningText


class TextDeltaEvent(_OfItem):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TokenLogprobContent]


class TextDoneEvent(_OfItem):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TokenLogprobContent]


class ReasoningDeltaEvent(_OfItem):
    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningDoneEvent(_OfItem):
    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ArgumentsDeltaEvent(_OfItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(_OfItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


Event = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)


class StreamEvent(RootModel):
    """One event of a stream, as its `type` tells."""

    root: Annotated[Event, Field(discriminator="type")]
