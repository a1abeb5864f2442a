"""What an output must look like: OpenAI's `response_format`, vLLM's `structured_outputs` and its older names."""

import json as jsonlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from xlaserve.errors import InvalidRequest
from xlaserve.grammar import ANY_JSON_OBJECT, Grammar
from xlaserve.server.protocol.strict import Strict


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _as_text(value: Any) -> Any:
    """A schema, or whatever is sent as one, as JSON; text is that already."""
    return value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False)


GuidedJson = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | dict[str, Any])]


class JsonSchema(Strict):
    """`name` and `description` are the client's own. Every schema is kept to, strict or not."""

    name: str | None = None
    description: str | None = None
    json_schema: Annotated[GuidedJson, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: Annotated[JsonSchema, BeforeValidator(_without_nulls)] | None = None
    structures: list[dict[str, Any]] | None = None  # extension, of a structural_tag
    triggers: list[str] | None = None  # extension

    @model_validator(mode="after")
    def _what_the_type_needs(self):
        needed = {"json_schema": {"json_schema"}, "structural_tag": {"structures", "triggers"}}.get(self.type, set())
        for name in ("json_schema", "structures", "triggers"):
            if (getattr(self, name) is None) == (name in needed):
                problem = "needs" if name in needed else "does not go with"
                raise ValueError(f"the type {self.type!r} {problem} {name}")
        return self

    def grammars(self) -> Iterator[Grammar]:
        if self.type == "json_object":
            yield Grammar("json_schema", ANY_JSON_OBJECT, "response_format")
        if self.json_schema is not None:
            yield Grammar("json_schema", self.json_schema.json_schema, "response_format")
        if self.structures is not None:
            asked = {"structures": self.structures, "triggers": self.triggers}
            yield Grammar("structural_tag", _as_text(asked), "response_format")


class StructuredOutputs(Strict):
    json_: Annotated[GuidedJson | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: GuidedJson | None = None

    def grammars(self) -> Iterator[Grammar]:
        param = "structured_outputs"
        yield from _grammars(param, json=self.json_, regex=self.regex, choice=self.choice, grammar=self.grammar)
        if self.json_object:
            yield Grammar("json_schema", ANY_JSON_OBJECT, param)
        if self.structural_tag is not None:
            yield Grammar("structural_tag", self.structural_tag, param)


def _grammars(
    param: str, *, json: str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> Iterator[Grammar]:
    """param: the field, or what the names of several begin with."""

    def name(kind: str) -> str:
        return f"{param}{kind}" if param.endswith("_") else param

    if json is not None:
        yield Grammar("json_schema", json, name("json"))
    if regex is not None:
        yield Grammar("regex", regex, name("regex"))
    if choice is not None:
        yield Grammar("choice", _as_text(choice), name("choice"))
    if grammar is not None:
        yield Grammar("grammar", grammar, name("grammar"))


def the_grammar(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None, **guided: Any
) -> Grammar | None:
    """The one that is asked for; None for plain text. guided: the older names, without their `guided_`."""
    found = [
        *(response_format.grammars() if response_format else ()),
        *(structured_outputs.grammars() if structured_outputs else ()),
        *_grammars("guided_", **guided),
    ]
    if structured_outputs and not any(each.param == "structured_outputs" for each in found):
        raise InvalidRequest("structured_outputs: says nothing; leave it out", param="structured_outputs")
    if len(found) > 1:
        message = f"{found[1].param}: the output can keep to one thing only, and {found[0].param} asks for another"
        raise InvalidRequest(message, param=found[1].param)
    return found[0] if found else None
