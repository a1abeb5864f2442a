"""Messages to the text of a prompt, by the model's Jinja template, rendered as transformers does."""

from typing import Any

import jinja2.meta
from jinja2.exceptions import TemplateError

from xlaserve.engine.template_sandbox import compile_template, limits, parse_template
from xlaserve.errors import InvalidRequest

_NO_TOOLS = (
    "This model's chat template has no place for tools. Leave them out, send tool_choice 'none', or set a template "
    "that has one with `--chat-template FILE` (in the configuration: model.chat_template)."
)
_RESERVED = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
_RESERVED |= {"tokenize"}
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' own; the space tells whether the template strips messages


class ChatTemplate:
    """One compiled template; safe to render from several threads. `variables` are bos_token, eos_token and the like.

    Raises jinja2.TemplateSyntaxError for source that is not a template.
    """

    def __init__(self, source: str, variables: dict[str, str]):
        self.source = source
        self._names = jinja2.meta.find_undeclared_variables(parse_template(source))  # that it reads from outside
        self._template = compile_template(source)
        self._variables = variables

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        continue_final_message: bool = False,
        reasoning_effort: str | None = None,
        variables: dict[str, Any] | None = None,
    ) -> str:
        """continue_final_message: the text ends inside the last message, as in transformers. variables: further ones.
        reasoning_effort: "none", too, for templates that can only be told not to think (`enable_thinking`).

        Raises InvalidRequest with the template's own words if it refuses the messages, and for what it has no place.
        """
        self._check(tools, documents, variables or {})
        effort = self._effort(reasoning_effort) if reasoning_effort is not None else {}
        if repeated := next((name for name in effort if name in (variables or {})), None):
            message = f"reasoning_effort: sets {repeated}, as chat_template_kwargs does; leave one of them out."
            raise InvalidRequest(message, param="reasoning_effort")
        # many templates print a null as "None"; they all handle a missing key
        messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
        if continue_final_message:
            messages[-1]["content"] += _TAG
        try:
            with limits():
                text = self._template.render(
                    **self._variables,
                    **(variables or {}),
                    **effort,
                    messages=messages,
                    tools=tools,
                    documents=documents,
                    add_generation_prompt=add_generation_prompt,
                )
        except TemplateError as error:
            raise InvalidRequest(error.message or type(error).__name__, param="messages") from error
        except Exception as error:  # a template can raise anything, for instance by adding a str to None
            message = f"The chat template cannot render these messages: {type(error).__name__}: {str(error)[:500]}"
            raise InvalidRequest(message, param="messages") from error
        return _until_tag(text) if continue_final_message else text

    def _check(self, tools: list | None, documents: list | None, variables: dict[str, Any]) -> None:
        if tools and "tools" not in self._names:
            raise InvalidRequest(_NO_TOOLS, param="tools")
        if documents and "documents" not in self._names:
            raise InvalidRequest("This model's chat template has no place for documents.", param="documents")
        reserved = _RESERVED | self._variables.keys()
        for name in variables:
            if name in reserved:
                problem = "is not the request's to set there"
            elif name not in self._names:
                problem = "is nothing that this model's chat template reads"
            else:
                continue
            raise InvalidRequest(f"chat_template_kwargs: {name[:80]!r} {problem}.", param="chat_template_kwargs")

    def _effort(self, effort: str) -> dict[str, Any]:
        """The template's variable that tells the model."""
        if "reasoning_effort" in self._names:
            return {"reasoning_effort": effort}
        if "enable_thinking" in self._names and effort == "none":
            return {"enable_thinking": False}
        only = "takes 'none' only" if "enable_thinking" in self._names else "has no place for it; leave it out"
        raise InvalidRequest(f"reasoning_effort: this model's chat template {only}.", param="reasoning_effort")


def _until_tag(text: str) -> str:
    """Up to the end of the last message, which the tag marks; a template may have stripped what surrounds it."""
    at = text.rfind(_TAG.strip())
    if at < 0:
        message = "The chat template does not show the final message as it is: it cannot be continued."
        raise InvalidRequest(message, param="continue_final_message")
    return text[:at] if text.startswith(_TAG, at) else text[:at].rstrip()
