"""Chat messages: checked as OpenAI defines them, and turned into what chat templates take (plain dicts with text)."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_MODALITIES = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video", "file": "file"}
_TEXTS = ("text", "refusal")  # the second is an assistant's
_PART_SEPARATOR = "\n"  # as vLLM joins text parts for templates that take strings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def without_nulls(value: Any) -> Any:
    """Null in an optional field is the same as its absence; what clients get in an answer they may send back."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _join_parts(content: Any) -> Any:
    """A list of text parts as one string; anything else is left for the type check."""
    if not isinstance(content, list):
        return content
    return _PART_SEPARATOR.join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError('each content part must be an object with a "type"')
    kind = part["type"]
    if kind in _MODALITIES:
        raise ValueError(f"{_MODALITIES[kind]} input is not supported ({kind[:40]}): this model takes text only")
    if kind not in _TEXTS:
        raise ValueError(f"content parts of type {kind[:40]!r} are not supported: only 'text' is")
    if set(part) != {"type", kind} or not isinstance(part[kind], str):
        raise ValueError(f'a {kind} part must be {{"type": "{kind}", "{kind}": "..."}} and hold nothing else')
    return part[kind]


def _has_refusal(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "refusal" for part in content
    )


Content = Annotated[str, BeforeValidator(_join_parts, json_schema_input_type=str | list[dict[str, Any]])]


def check_json_object(arguments: str) -> str:
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError("must be a JSON object written as a string")
    return arguments


class FunctionCall(_Strict):
    name: str
    arguments: Annotated[str, AfterValidator(check_json_object)]
    parsed_arguments: Any = None  # the openai client's messages hold what it has read in `arguments`

    _nulls = model_validator(mode="before")(without_nulls)


class ToolCall(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # the openai client's messages hold a call's place, after a stream

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments)}
        return {"id": self.id, "type": self.type, "function": function}


class Message(_Strict):
    """One message. Content may be missing only where an assistant called tools."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall] | None, Field(min_length=1)] = None  # of an assistant
    tool_call_id: str | None = None  # of a tool
    refusal: str | None = None  # of an assistant, in place of content
    reasoning_content: str | None = None  # of an assistant; templates show it where their model is to see it
    annotations: Annotated[list | None, Field(max_length=0)] = None  # the openai client's messages hold an empty list

    _nulls = model_validator(mode="before")(without_nulls)

    @model_validator(mode="before")
    @classmethod
    def _only_assistants_refuse(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("role") != "assistant" and _has_refusal(value.get("content")):
            raise ValueError("refusal parts belong to an assistant message")
        return value

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> "Message":
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"tool_calls belong to an assistant message, not to one of role {self.role!r}")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError(f"tool_call_id belongs to a tool message, not to one of role {self.role!r}")
        if self.reasoning_content is not None and self.role != "assistant":
            raise ValueError(f"reasoning_content belongs to an assistant message, not to one of role {self.role!r}")
        if self.refusal is not None and (self.role != "assistant" or self.content):
            raise ValueError("refusal belongs to an assistant message that has no content")
        if self.content is None and self.tool_calls is None and self.refusal is None:
            raise ValueError(f"content is missing: a message of role {self.role!r} needs text")
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: text, never null, and a call's arguments as an object."""
        message: dict[str, Any] = {"role": self.role, "content": self.content or self.refusal or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls is not None:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message
