"""Tool calls in a model's text, in the forms that models write them in: see `base`. Knows no tokens and no HTTP."""

from xlaserve.engine.tool_parsers.base import CallDelta, ToolDelta, ToolParser
from xlaserve.engine.tool_parsers.hermes import HermesParser
from xlaserve.engine.tool_parsers.llama3_json import Llama3JsonParser
from xlaserve.engine.tool_parsers.mistral import MistralParser
from xlaserve.engine.tool_parsers.pythonic import PythonicParser

__all__ = ["PARSERS", "CallDelta", "ToolDelta", "ToolParser", "parser_for"]

PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
}

# What a template that asks for a form says, most telling first. The first two forms have no parser here.
_SIGNS = (
    ("<function=", None),
    ("<arg_key>", None),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "pythonic"),
    ("func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name and its value', "llama3_json"),
)


def parser_for(template: str) -> str | None:
    """The name of the parser for what a chat template asks the model to write; None if it does not tell."""
    return next((name for sign, name in _SIGNS if sign in template), None)
