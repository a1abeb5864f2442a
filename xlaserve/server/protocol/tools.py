"""The tools of a chat request, and which of them the model may or must call."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from xlaserve.server.protocol.strict import Strict

MAX_TOOLS = 128  # OpenAI's limit

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
CHOICES = 'must be "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}'


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class Function(Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: the function takes none
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Annotated[Function, BeforeValidator(_without_nulls)]

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it; `strict` is for the server, not for the model."""
        return self.model_dump(exclude_unset=True, exclude={"function": {"strict"}})


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


def _parse_choice(value: Any) -> Any:
    """The name of a function is in a NamedTool; pydantic's own words for a union tell every form it is not."""
    if value in ("none", "auto", "required"):
        return value
    try:
        return NamedTool.model_validate(value)
    except ValueError:
        raise ValueError(CHOICES) from None


ToolChoice = Annotated[Literal["none", "auto", "required"] | NamedTool, BeforeValidator(_parse_choice)]
