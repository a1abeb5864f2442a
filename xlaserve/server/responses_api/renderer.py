"""Turns what the engine produced into one response, whole and as the events of a stream."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from xlaserve.errors import XlaserveError
from xlaserve.sampling_params import SamplingParams
from xlaserve.server.errors import ClientGone, error_reply
from xlaserve.server.events import event
from xlaserve.server.logprobs import chat_logprobs
from xlaserve.server.render import Renderer
from xlaserve.server.responses import TokenLogprobContent
from xlaserve.server.responses_api import replies
from xlaserve.server.responses_api.output import Output
from xlaserve.server.responses_api.request import ResponsesRequest

if TYPE_CHECKING:
    from xlaserve.engine.generations import Generations
    from xlaserve.engine.output_processor import TextDelta, TokenLogprob
    from xlaserve.server.answer_form import AnswerForm

_logger = logging.getLogger(__name__)


class ResponsesRenderer(Renderer):
    """keep: called with id and JSON of a response to be stored, once it has ended well, before anybody reads of it."""

    prefix = "resp_"

    def __init__(
        self,
        model: str,
        form: "AnswerForm",
        params: SamplingParams,
        asked: ResponsesRequest,
        keep: Callable[[str, bytes], None],
    ):
        super().__init__(model, [form.prompt_ids], form.asked)
        self._form = form
        self._answer = form.answer()
        self._output = Output(self._answer.new_call_id)
        self._keep = keep
        self._held: list[TokenLogprob] = []  # of tokens whose text has not come yet, the reasoning's among them
        self._is_content = False  # the reasoning is over
        self._response = replies.ResponseReply(
            id=self.id,
            object="response",
            created_at=self._common["created"],
            completed_at=None,
            status="in_progress",
            model=model,
            error=None,
            incomplete_details=None,
            output=[],
            usage=None,
            **_as_asked(asked, params),
        )

    def whole(self, generations: "Generations") -> replies.ResponseReply:
        generations.look_for_ends()
        for _, delta in generations:
            for _event in self._push(delta):
                pass
        return self._response

    def stream(self, generations: "Generations") -> Iterator[bytes]:
        """As `pieces` of an EventStream. An error becomes an event, for the status line is long gone."""
        events = [*map(_encode, self._begin())]  # each at once: what it tells of goes on changing
        try:
            while not generations.is_over:
                for _, delta in generations.new():
                    events += map(_encode, self._push(delta))
                if not generations.is_over:
                    yield b"".join(events)
                    events.clear()
        except ClientGone:
            return
        except Exception as error:
            if not isinstance(error, XlaserveError):
                _logger.exception("Error in the stream %s", self.id)
            events.append(_encode(self._fail(error)))
            generations.abort()
        yield b"".join(events)

    def _begin(self) -> Iterator[replies.Event]:
        for name in ("response.created", "response.in_progress"):
            yield self._output.event(replies.ResponseEvent, name, response=self._response)

    def _push(self, delta: "TextDelta") -> Iterator[replies.Event]:
        self._count(0, delta)
        is_last = delta.finish_reason is not None
        new = self._answer.push(delta.text, delta.token_ids, is_last=is_last)
        self._held.extend(delta.logprobs or ())
        yield from self._output.push(new, self._take_logprobs() if new.content else None)
        if is_last:
            yield from self._end(delta)

    def _take_logprobs(self) -> list[TokenLogprobContent] | None:
        """Of the tokens since the last ones, those of the reasoning left out: it is over. None: not asked for."""
        if not self._logprobs:
            return None
        entries = self._held[self._num_reasoning_held() :]
        self._held, self._is_content = [], True
        return chat_logprobs(entries).content

    def _num_reasoning_held(self) -> int:
        return 0 if self._is_content else self._answer.num_reasoning_tokens

    def _end(self, delta: "TextDelta") -> Iterator[replies.Event]:
        status = "incomplete" if delta.finish_reason == "length" else "completed"
        yield from self._output.end(status, self._take_logprobs())
        self._response.status = status
        if status == "completed":
            self._response.completed_at = int(time.time())
        elif delta.stop_reason != "timeout":
            self._response.incomplete_details = replies.IncompleteDetails(reason="max_output_tokens")
        self._response.output = self._output.items
        self._response.usage = self._response_usage()
        if self._response.store:
            self._keep(self.id, self._response.json_bytes())
        yield self._output.event(replies.ResponseEvent, f"response.{status}", response=self._response)

    def _fail(self, error: Exception) -> replies.Event:
        message = json.loads(error_reply(error).body)["error"]["message"]
        self._response.status = "failed"
        self._response.error = replies.ResponseError(code="server_error", message=message)
        return self._output.event(replies.ResponseEvent, "response.failed", response=self._response)

    def _response_usage(self) -> replies.ResponseUsage:
        usage = self._usage()
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        return replies.ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=replies.InputTokensDetails(cached_tokens=cached, cache_write_tokens=0),
            output_tokens=usage.completion_tokens,
            output_tokens_details=replies.OutputTokensDetails(reasoning_tokens=self._answer.num_reasoning_tokens),
            total_tokens=usage.total_tokens,
        )


def _encode(each: replies.Event) -> bytes:
    return event(each.json_bytes(), each.type)


def _as_asked(asked: ResponsesRequest, params: SamplingParams) -> dict[str, Any]:
    """With defaults, the checkpoint's among them."""
    return {
        "background": False,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": asked.previous_response_id,
        "reasoning": {"effort": asked.reasoning.effort, "summary": None},
        "store": asked.store,
        "temperature": params.temperature,
        "text": {"format": asked.text.format.as_asked()},
        "tool_choice": asked.tool_choice if isinstance(asked.tool_choice, str) else asked.tool_choice.model_dump(),
        "tools": [tool.as_asked() for tool in asked.tools],
        "top_logprobs": asked.top_logprobs,
        "top_p": params.top_p,
        "truncation": asked.truncation,
        "user": asked.user,
    }
