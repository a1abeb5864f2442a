"""POST /v1/responses, and the queries of what has been answered: checked, and turned into a chat request."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from xlaserve.sampling_params import MAX_LOGPROBS
from xlaserve.server.messages import without_nulls
from xlaserve.server.protocol.chat import Effort
from xlaserve.server.protocol.generation import NoObfuscation, TextRequest
from xlaserve.server.protocol.strict import Strict
from xlaserve.server.protocol.structured import GuidedJson
from xlaserve.server.protocol.tools import MAX_TOOLS, FunctionName
from xlaserve.server.responses_api.items import InputItem, Item, as_items
from xlaserve.server.responses_api.unsupported import QUERY, RESPONSES
from xlaserve.server.validation import validate

LOGPROBS = "message.output_text.logprobs"
MAX_LISTED = 100
_CHOICES = 'must be "none", "auto", "required" or {"type": "function", "name": "..."}'


def _functions_only(value: Any) -> Any:
    """Of another kind of tool the error names its type."""
    for tool in value if isinstance(value, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise ValueError(f"tools of type {kind[:40]!r} are not supported: only 'function' is")
    return value


class FunctionTool(Strict):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: the function takes none
    strict: bool | None = None

    _nulls = model_validator(mode="before")(without_nulls)

    def as_asked(self) -> dict[str, Any]:
        optional = {"description": None, "parameters": None, "strict": False}
        return optional | self.model_dump(exclude_none=True)

    def for_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude_none=True, exclude={"type"})}


class NamedFunctionTool(Strict):
    type: Literal["function"]
    name: str


def _choice(value: Any) -> Any:
    if value in ("none", "auto", "required"):
        return value
    try:
        return NamedFunctionTool.model_validate(value)
    except ValueError:
        raise ValueError(_CHOICES) from None


class TextFormat(Strict):
    """The fields beside `type` are those of a json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[GuidedJson | None, Field(alias="schema")] = None
    strict: bool | None = None

    _nulls = model_validator(mode="before")(without_nulls)

    @model_validator(mode="after")
    def _schema_fits_the_type(self):
        if (self.type == "json_schema") != (self.json_schema is not None):
            problem = "needs" if self.type == "json_schema" else "does not go with"
            raise ValueError(f"the type {self.type!r} {problem} schema")
        return self

    def as_asked(self) -> dict[str, Any]:
        schema = {} if self.json_schema is None else {"schema": json.loads(self.json_schema)}
        return self.model_dump(exclude_none=True, exclude={"json_schema"}) | schema

    def for_chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.json_schema}}


class Text(Strict):
    format: TextFormat = TextFormat(type="text")

    _nulls = model_validator(mode="before")(without_nulls)


class Reasoning(Strict):
    effort: Effort | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class ResponsesRequest(TextRequest):
    """POST /v1/responses."""

    input: Annotated[
        list[InputItem], BeforeValidator(as_items, json_schema_input_type=str | list[InputItem]), Field(min_length=1)
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: Text = Text()
    tools: Annotated[
        list[FunctionTool],
        BeforeValidator(_functions_only, json_schema_input_type=list[FunctionTool]),
        Field(max_length=MAX_TOOLS),
    ] = Field(default_factory=list)
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedFunctionTool, BeforeValidator(_choice)] = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning = Reasoning()
    include: list[Literal["message.output_text.logprobs"]] = Field(default_factory=list)
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    store: bool = True
    stream_options: NoObfuscation | None = None
    user: str | None = None
    metadata: Metadata = Field(default_factory=dict)
    chat_template_kwargs: dict[str, Any] | None = None  # extension
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None  # extension

    @model_validator(mode="after")
    def _fields_go_together(self):
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        if self.top_logprobs and not self.wants_logprobs:
            raise ValueError(f"top_logprobs: only allowed when include has {LOGPROBS!r}")
        if self.wants_logprobs and self.tools:
            raise ValueError(f"include: {LOGPROBS!r} does not go with tools, whose calls are tokens, too")
        if not self.tools and self.tool_choice not in ("none", "auto"):
            raise ValueError("tool_choice: only allowed when tools are specified")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include

    def items(self) -> list[Item]:
        """Of the input, with an id each."""
        return [item.item() for item in self.input]

    def chat_request(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What asks /v1/chat/completions for the answer to `messages`, after the instructions."""
        shared = {*TextRequest.model_fields, "chat_template_kwargs", "thinking_token_budget"}
        chat = self.model_dump(mode="json", by_alias=True, exclude_unset=True, include=shared)
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions is not None else []
        chat["messages"] = [*instructions, *messages]
        chat["max_completion_tokens"] = self.max_output_tokens
        chat["response_format"] = self.text.format.for_chat()
        chat["reasoning_effort"] = self.reasoning.effort
        if self.wants_logprobs:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.tools:
            chat["tools"] = [tool.for_chat() for tool in self.tools]
            chat["parallel_tool_calls"] = self.parallel_tool_calls
            choice = self.tool_choice
            named = isinstance(choice, NamedFunctionTool)
            chat["tool_choice"] = {"type": "function", "function": {"name": choice.name}} if named else choice
        return chat


class ItemsQuery(Strict):
    """The query of GET /v1/responses/{response_id}/input_items."""

    limit: Annotated[int, Field(ge=1, le=MAX_LISTED, strict=False)] = 20
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"


class ResponseQuery(Strict):
    """The query of GET /v1/responses/{response_id}."""

    stream: Literal["false"] = "false"


def parse_responses(data: dict[str, Any]) -> ResponsesRequest:
    return validate(ResponsesRequest, data, RESPONSES)


def parse_items_query(query: dict[str, Any]) -> ItemsQuery:
    return validate(ItemsQuery, query, QUERY)


def parse_response_query(query: dict[str, Any]) -> ResponseQuery:
    return validate(ResponseQuery, query, QUERY)
