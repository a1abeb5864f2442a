"""Renders a chat template that a client has sent. A program of its own, which can be killed (`request_template.py`).

    python -I -S template_program.py BYTES FOLDER...

reads {"source", "variables", "messages", "options", "max_characters"} and writes {"text": ...} or {"error", "param"}.
The options are those of `ChatTemplate.render`.
"""

import json
import resource
import sys
from typing import Any


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    import jinja2

    from xlaserve.engine.chat_template import ChatTemplate
    from xlaserve.errors import InvalidRequest

    try:
        template = ChatTemplate(asked["source"], asked["variables"])
        text = template.render(asked["messages"], **asked["options"])
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"is not valid Jinja: line {error.lineno}: {error.message}", "param": None}
    except InvalidRequest as error:
        return {"error": str(error), "param": error.param}
    if len(text) > asked["max_characters"]:
        return {"error": "makes too much text", "param": None}
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"error": "makes half of a surrogate pair, which is no text", "param": None}
    return {"text": text}


def main() -> None:
    memory, *folders = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    sys.path += folders
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
