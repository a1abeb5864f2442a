"""A job as it goes to another process, and the same job there: made by the code that made it here.

All that is streamed can move. A beam search, which goes on as it is read, is not streamed.
"""

from collections.abc import Callable
from typing import Any

from xlaserve.server.answer_form import AnswerForm, ModelText
from xlaserve.server.jobs import TextJob, write_chat, write_completion
from xlaserve.server.protocol.chat import parse_chat
from xlaserve.server.protocol.completion import parse_completion
from xlaserve.server.responses_api.job import write_response
from xlaserve.server.responses_api.request import parse_responses


def describe(job: TextJob) -> dict[str, Any]:
    """JSON. The id that the answer has here is given as the one that was asked for."""
    return {
        "kind": job.recipe.kind,
        "data": job.recipe.data,
        "more": job.recipe.more,
        "id": job.renderer.id.removeprefix(job.renderer.prefix),
        "prompts": job.prompts,
    }


def restore(model: ModelText, told: dict[str, Any], keep: Callable[[str, bytes], None]) -> TextJob:
    """The job that `describe` has told of; keep: see Recipe."""
    data, more, prompts = told["data"], told["more"], told["prompts"]
    called = {"request_id": told["id"]}
    match told["kind"]:
        case "completion":
            return write_completion(model, data, parse_completion(data | called), prompts, more["echoed"])
        case "chat":
            return write_chat(AnswerForm(model, parse_chat(data | called), prompts[0], data))
        case "responses":
            chat = more["chat"]
            form = AnswerForm(model, parse_chat(chat | called), prompts[0], chat)
            return write_response(form, data, parse_responses(data), keep)
    raise ValueError(told["kind"])
