"""Messages to the text of a prompt, by the model's Jinja template, rendered as transformers does."""

from typing import Any

import jinja2.meta
from jinja2.exceptions import TemplateError

from xlaserve.engine.template_sandbox import compile_template, limits, parse_template
from xlaserve.errors import InvalidRequest


class ChatTemplate:
    """One compiled template; safe to render from several threads. `variables` are bos_token, eos_token and the like.

    Raises jinja2.TemplateSyntaxError for source that is not a template.
    """

    def __init__(self, source: str, variables: dict[str, str]):
        self.source = source
        self.takes_tools = "tools" in jinja2.meta.find_undeclared_variables(parse_template(source))
        self._template = compile_template(source)
        self._variables = variables

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Raises InvalidRequest with the template's own words if it refuses the messages."""
        # many templates print a null as "None"; they all handle a missing key
        messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            with limits():
                return self._template.render(
                    **self._variables,
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                )
        except TemplateError as error:
            raise InvalidRequest(error.message or type(error).__name__, param="messages") from error
        except Exception as error:  # a template can raise anything, for instance by adding a str to None
            message = f"The chat template cannot render these messages: {type(error).__name__}: {str(error)[:500]}"
            raise InvalidRequest(message, param="messages") from error
