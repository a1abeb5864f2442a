"""Has a chat template that a client has sent rendered in a process of its own."""

from pathlib import Path
from typing import Any

import jinja2

from xlaserve.engine.child import Child, Refused
from xlaserve.errors import InvalidRequest

SECONDS = 6.0  # more than the sandbox's own limit, which tells better what is wrong
MAX_RENDERINGS = 2
MAX_CHARACTERS = 2**24  # of a prompt: more than any context has room for

_child = Child(
    Path(__file__).with_name("template_program.py"),
    [Path(__file__).parents[2], Path(jinja2.__file__).parent.parent],
    task="render",
    memory=1024**3,
    max_at_once=MAX_RENDERINGS,
)


def render_apart(
    source: str, variables: dict[str, str], messages: list[dict[str, Any]], options: dict[str, Any]
) -> str:
    """As `ChatTemplate(source, variables).render(messages, **options)`, whatever the template does.

    Raises InvalidRequest, which names chat_template where the template is at fault, and Overloaded: see Child.
    """
    asked = {"source": source, "variables": variables, "messages": messages, "options": options}
    try:
        answer = _child.run(asked | {"max_characters": MAX_CHARACTERS}, seconds=SECONDS)
    except Refused as problem:
        raise InvalidRequest(f"chat_template: {problem}", param="chat_template") from None
    if "text" in answer:
        return answer["text"]
    if answer["param"] in (None, "messages"):  # it is the client's to change
        raise InvalidRequest(f"chat_template: {answer['error']}", param="chat_template")
    raise InvalidRequest(answer["error"], param=answer["param"])
