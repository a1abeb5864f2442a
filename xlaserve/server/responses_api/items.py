"""The items of a conversation: checked as they come in, kept as plain dicts, and turned into chat messages."""

import uuid
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from xlaserve.server.messages import check_json_object, without_nulls
from xlaserve.server.protocol.strict import Strict

KINDS = ("message", "function_call", "function_call_output", "reasoning")
Status = Literal["in_progress", "completed", "incomplete"]
Item = dict[str, Any]  # in OpenAI's form, with an id, content as a list of parts, no nulls

_SEPARATOR = "\n"  # between text parts, as in chat messages
_OUTPUTS = {"output_text": "text", "refusal": "refusal"}  # parts and where their text is
_INPUTS = {"input_text": "text"}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _parts(content: Any, allowed: dict[str, str]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        kind = next(iter(allowed))
        content = [{"type": kind, allowed[kind]: content}]
    if not isinstance(content, list):
        raise ValueError("must be a string or a list of content parts")
    return [_part(part, allowed) for part in content]


def _part(part: Any, allowed: dict[str, str]) -> dict[str, Any]:
    """Its type and its text; what else an answer's part has (annotations, logprobs, parsed) is not for the model."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in allowed:
        what = f"of type {str(kind)[:40]!r}" if kind else "without a type"
        raise ValueError(f"a content part {what} cannot stand here: only {' and '.join(allowed)} can")
    known = {"type", allowed[kind]} | ({"annotations", "logprobs", "parsed"} if kind == "output_text" else set())
    more = [name for name, value in part.items() if name not in known and value is not None]
    if more or not isinstance(part.get(allowed[kind]), str) or part.get("annotations"):
        raise ValueError(f'a part must be {{"type": "{kind}", "{allowed[kind]}": "..."}} and hold nothing else')
    return {"type": kind, allowed[kind]: part[allowed[kind]]} | ({"annotations": []} if kind == "output_text" else {})


def _text(parts: Iterable[dict[str, Any]]) -> str:
    return _SEPARATOR.join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in parts)


def _typed_parts(*kinds: str):
    allowed = dict.fromkeys(kinds, "text")
    forms = str | list[dict[str, Any]]
    return BeforeValidator(lambda value: _parts(value, allowed), json_schema_input_type=forms)


class _Input(Strict):
    """`id` and `status` are what an answer had; the model is not told of them."""

    id: str | None = None
    status: Status | None = None

    _nulls = model_validator(mode="before")(without_nulls)

    def item(self) -> Item:
        return self.model_dump(exclude_none=True) | {"id": self.id or new_id(self._prefix()), "status": "completed"}

    def _prefix(self) -> str:
        raise NotImplementedError


class InputMessage(_Input):
    """Content: a string, or parts of type input_text, of an assistant output_text and refusal."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]
    phase: Literal["commentary", "final_answer"] | None = None  # what an answer had

    @model_validator(mode="after")
    def _content_fits_the_role(self):
        self.content = _parts(self.content, _OUTPUTS if self.role == "assistant" else _INPUTS)
        return self

    def _prefix(self) -> str:
        return "msg"


class InputFunctionCall(_Input):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Annotated[str, AfterValidator(check_json_object)]
    parsed_arguments: Annotated[Any, Field(exclude=True)] = None  # what the openai client has read in `arguments`

    def _prefix(self) -> str:
        return "fc"


class InputFunctionOutput(_Input):
    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[list[dict[str, Any]], _typed_parts("input_text")]

    def _prefix(self) -> str:
        return "fco"


class InputReasoning(_Input):
    """Content: parts of type reasoning_text; without one the summary stands for it."""

    type: Literal["reasoning"]
    summary: Annotated[list[dict[str, Any]], _typed_parts("summary_text")] = Field(default_factory=list)
    content: Annotated[list[dict[str, Any]], _typed_parts("reasoning_text")] = Field(default_factory=list)

    def _prefix(self) -> str:
        return "rs"


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputFunctionCall, Tag("function_call")]
    | Annotated[InputFunctionOutput, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(lambda value: value.get("type") or "message" if isinstance(value, dict) else value.type),
]


def as_items(value: Any) -> Any:
    """A string is a message of the user's. Of another kind of item the error names its type, not all that it is not."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, dict):
            raise ValueError("each item must be an object")
        if (kind := item.get("type") or "message") not in KINDS:
            raise ValueError(f"items of type {str(kind)[:40]!r} are not supported: only {', '.join(KINDS)} are")
    return value


def repeated_id(items: Iterable[Item]) -> str | None:
    """The first id that two items have: a list of them could not be gone through by their ids."""
    seen: set[str] = set()
    return next((item["id"] for item in items if item["id"] in seen or seen.add(item["id"])), None)


def unanswered_output(items: Iterable[Item]) -> str | None:
    """The call_id of the first function_call_output without its call before it."""
    called: set[str] = set()
    for item in items:
        if item["type"] == "function_call":
            called.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in called:
            return item["call_id"]
    return None


def to_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """As /v1/chat/completions takes them. What an assistant thought, said and called is one message, in this order."""
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            if thoughts := _text(item.get("content") or item["summary"]):
                _assistant(messages, "reasoning_content")["reasoning_content"] = thoughts
        elif kind == "function_call":
            if item["status"] == "incomplete":  # max_output_tokens ended its arguments: nobody can have answered it
                continue
            call = {"id": item["call_id"], "function": {"name": item["name"], "arguments": item["arguments"]}}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
        elif item["role"] == "assistant":
            _assistant(messages, "content")["content"] = _text(item["content"])
        else:
            messages.append({"role": item["role"], "content": _text(item["content"])})
    for message in messages:
        if "tool_calls" not in message:
            message.setdefault("content", "")  # of thoughts that nothing followed
    return messages


def _assistant(messages: list[dict[str, Any]], field: str | None = None) -> dict[str, Any]:
    """The last message, where it is an assistant's that may still get `field`; None: a call."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (field and (field in last or "tool_calls" in last)):
        messages.append({"role": "assistant"})
    return messages[-1]
