"""The items of one answer as they grow, and the events that tell of each step."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from xlaserve.engine.answer_parser import AnswerDelta
from xlaserve.server.responses import TokenLogprobContent
from xlaserve.server.responses_api import replies
from xlaserve.server.responses_api.items import Status, new_id

_Event = TypeVar("_Event")


class Output:
    """The last item is the one that grows, if any. new_call_id: in the form that the model's template asks for."""

    def __init__(self, new_call_id: Callable[[], str]):
        self.items: list[replies.OutputItem] = []
        self._new_call_id = new_call_id
        self._open: replies.OutputItem | None = None  # the last of the items
        self._numbers = itertools.count()

    def event(self, kind: Callable[..., _Event], name: str, **fields: Any) -> _Event:
        return kind(type=name, sequence_number=next(self._numbers), **fields)

    def push(self, new: AnswerDelta, logprobs: Sequence[TokenLogprobContent] | None) -> Iterator[replies.Event]:
        """logprobs: of the tokens of the content; None where they are not asked for."""
        if new.reasoning:
            yield from self._reason(new.reasoning)
        if new.content:
            yield from self._say(new.content, logprobs)
        for piece in new.calls:
            if piece.name is not None:
                yield from self._close("completed")
                yield self._begin(self._new_call(piece.name))
            assert isinstance(self._open, replies.FunctionCallItem)
            self._open.arguments += piece.arguments
            fields = self._place() | {"delta": piece.arguments}
            yield self.event(replies.ArgumentsDeltaEvent, "response.function_call_arguments.delta", **fields)

    def end(self, status: Status, logprobs: Sequence[TokenLogprobContent] | None) -> Iterator[replies.Event]:
        """status: of the last item. An answer without anything is an empty message. logprobs: of tokens without text
        of their own, EOS for one.
        """
        if not self.items or isinstance(self._open, replies.MessageItem):
            yield from self._say("", logprobs)
        yield from self._close(status)

    def _say(self, text: str, logprobs: Sequence[TokenLogprobContent] | None) -> Iterator[replies.Event]:
        if not isinstance(self._open, replies.MessageItem):
            yield from self._close("completed")
            more = {} if logprobs is None else {"logprobs": []}
            part = replies.OutputText(type="output_text", text="", annotations=[], **more)
            item = replies.MessageItem(
                id=new_id("msg"), type="message", role="assistant", status="in_progress", content=[]
            )
            yield self._begin(item)
            yield self._add_part(item.content, part)
        assert isinstance(self._open, replies.MessageItem)
        part = self._open.content[0]
        assert isinstance(part, replies.OutputText)
        part.text += text
        if part.logprobs is not None:
            part.logprobs.extend(logprobs or ())
        if text or logprobs:
            fields = self._place() | {"content_index": 0, "delta": text, "logprobs": list(logprobs or ())}
            yield self.event(replies.TextDeltaEvent, "response.output_text.delta", **fields)

    def _reason(self, text: str) -> Iterator[replies.Event]:
        if not isinstance(self._open, replies.ReasoningItem):
            yield from self._close("completed")
            item = replies.ReasoningItem(
                id=new_id("rs"), type="reasoning", summary=[], content=[], status="in_progress"
            )
            yield self._begin(item)
            yield self._add_part(item.content, replies.ReasoningText(type="reasoning_text", text=""))
        assert isinstance(self._open, replies.ReasoningItem)
        self._open.content[0].text += text
        fields = self._place() | {"content_index": 0, "delta": text}
        yield self.event(replies.ReasoningDeltaEvent, "response.reasoning_text.delta", **fields)

    def _new_call(self, name: str) -> replies.FunctionCallItem:
        return replies.FunctionCallItem(
            id=new_id("fc"),
            type="function_call",
            call_id=self._new_call_id(),
            name=name,
            arguments="",
            status="in_progress",
        )

    def _begin(self, item: replies.OutputItem) -> replies.Event:
        self.items.append(item)
        self._open = item
        return self._item_event("response.output_item.added")

    def _add_part(self, content: list, part: replies.OutputText | replies.ReasoningText) -> replies.Event:
        content.append(part)
        return self._part_event("response.content_part.added", part)

    def _close(self, status: Status) -> Iterator[replies.Event]:
        item = self._open
        if item is None:
            return
        if isinstance(item, replies.FunctionCallItem):
            fields = self._place() | {"arguments": item.arguments}
            yield self.event(replies.ArgumentsDoneEvent, "response.function_call_arguments.done", **fields)
        else:
            (part,) = item.content
            fields = self._place() | {"content_index": 0}
            if isinstance(part, replies.OutputText):
                fields |= {"text": part.text, "logprobs": part.logprobs or []}
                yield self.event(replies.TextDoneEvent, "response.output_text.done", **fields)
            elif isinstance(part, replies.ReasoningText):
                yield self.event(replies.ReasoningDoneEvent, "response.reasoning_text.done", **fields, text=part.text)
            yield self._part_event("response.content_part.done", part)
        item.status = status
        yield self._item_event("response.output_item.done")
        self._open = None

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1].id, "output_index": len(self.items) - 1}

    def _item_event(self, name: str) -> replies.Event:
        item = self.items[-1].model_copy(deep=True)  # it goes on growing
        return self.event(replies.ItemEvent, name, output_index=len(self.items) - 1, item=item)

    def _part_event(self, name: str, part: Any) -> replies.Event:
        fields = self._place() | {"content_index": 0, "part": part.model_copy()}
        return self.event(replies.PartEvent, name, **fields)
