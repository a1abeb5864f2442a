"""From the JSON of POST /v1/responses to its answer. Knows of no connection."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xlaserve.engine.generations import Generations
from xlaserve.errors import InvalidRequest
from xlaserve.sampling_params import SamplingParams
from xlaserve.server.answer_form import AnswerForm
from xlaserve.server.jobs import Job, Recipe, TextJob, chat_form
from xlaserve.server.renaming import renamed
from xlaserve.server.responses import Reply
from xlaserve.server.responses_api.items import Item, repeated_id, to_messages, unanswered_output
from xlaserve.server.responses_api.renderer import ResponsesRenderer
from xlaserve.server.responses_api.request import ResponsesRequest, parse_responses
from xlaserve.server.responses_api.store import ResponseStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from xlaserve.engine.service import GenerationService
    from xlaserve.scheduling_params import SchedulingParams

TOO_LONG = "context_length_exceeded"  # OpenAI's code

# What an error about the chat request calls a field, and what it is called here.
_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}


@dataclass(frozen=True)
class ResponsesJob(TextJob):
    renderer: ResponsesRenderer

    def start(
        self, service: "GenerationService", scheduling: "SchedulingParams", check: "Callable[[], None]"
    ) -> Generations:
        with renamed(_NAMES):
            return super().start(service, scheduling, check)

    def _answer(self, generations: Generations) -> Reply:
        return self.renderer.whole(generations)

    def stream(self, generations: Generations) -> Iterator[bytes]:
        return self.renderer.stream(generations)


def responses_job(service: "GenerationService", data: dict[str, Any], store: ResponseStore, tenant: str) -> Job:
    """Raises InvalidRequest."""
    asked = parse_responses(data)
    history: list[Item] = []
    if asked.previous_response_id is not None:
        history = store.conversation(asked.previous_response_id, tenant=tenant)
    items = [*history, *asked.items()]
    if call_id := unanswered_output(items):
        message = f"No tool call found for function call output with call_id {call_id[:80]!r}."
        raise InvalidRequest(message, param="input")
    if item_id := repeated_id(items):
        message = (
            f"Duplicate item found with id {item_id[:80]!r}. Remove duplicate items from your input and try again."
        )
        raise InvalidRequest(message, param="input")
    messages = to_messages(items)
    if not messages:
        raise InvalidRequest("input: its items hold nothing that the model could be shown.", param="input")

    def keep(response_id: str, response: bytes) -> None:
        store.put(response_id, response, items, tenant=tenant)

    with renamed(_NAMES):
        form = _form(service, asked, messages)
        return write_response(form, data, asked, keep)


def write_response(
    form: AnswerForm, data: "dict[str, Any]", asked: ResponsesRequest, keep: "Callable[[str, bytes], None]"
) -> ResponsesJob:
    """The job whose prompt is known; `keep`: see ResponsesRenderer."""
    params = form.sampling_params()
    assert isinstance(params, SamplingParams)
    renderer = ResponsesRenderer(form.model.info.name, form, params, asked, keep)
    recipe = Recipe("responses", data, {"chat": form.data}, keep)
    return ResponsesJob(form.asked, params, [form.prompt_ids], renderer, recipe)


def _form(service: "GenerationService", asked: ResponsesRequest, messages: list[dict[str, Any]]) -> AnswerForm:
    """With truncation "auto", the oldest turns are left out, as few as will do: a turn begins with a user's message."""
    turns = [index for index, message in enumerate(messages) if message["role"] == "user"][1:]
    if asked.truncation == "disabled" or not turns:
        return chat_form(service, asked.chat_request(messages))
    room = min(service.info.max_model_len, service.info.max_request_tokens) - (asked.max_output_tokens or 1)

    def from_turn(number: int) -> AnswerForm | None:
        """None where the messages from this turn on are too many."""
        try:
            form = chat_form(service, asked.chat_request(messages[starts[number] :]))
        except InvalidRequest as error:
            if error.code != TOO_LONG:
                raise
            return None
        return form if len(form.prompt_ids) <= room else None

    starts = [0, *turns]
    if form := from_turn(0):
        return form
    # From the end: what is tried costs what its messages do, and of a long conversation few will do.
    first, step = len(turns), 1  # the last turn is not left out
    while first > step and from_turn(first - step):
        first -= step
        step *= 2
    first = bisect.bisect_left(range(first), True, lo=max(1, first - step + 1), key=lambda i: bool(from_turn(i)))
    return chat_form(service, asked.chat_request(messages[starts[first] :]))
