"""Turns what the engine produced into OpenAI's objects: whole answers, and the chunks of a stream."""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from xlaserve.server import responses
from xlaserve.server.events import Frame, event
from xlaserve.server.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from xlaserve.server.responses import (
    ChatDelta,
    CompletionTokensDetails,
    FinishReason,
    PromptTokensDetails,
    Reply,
    Timings,
    Usage,
)

if TYPE_CHECKING:
    from xlaserve.engine.answer_parser import AnswerDelta
    from xlaserve.engine.completion import Completion
    from xlaserve.engine.output_processor import TextDelta
    from xlaserve.server.answer_form import AnswerForm
    from xlaserve.server.protocol.completion import CompletionRequest
    from xlaserve.server.protocol.generation import GenerationRequest


NOT_SHOWN = -1  # the index of answers that best_of leaves out


class Renderer:
    """What is the same in every object of one answer. `prompts` are token ids; each has `n` choices."""

    prefix: str

    def __init__(self, model: str, prompts: Sequence[list[int]], asked: "GenerationRequest"):
        self.id = f"{self.prefix}{asked.request_id or uuid.uuid4().hex}"
        self._asked = asked
        self._prompts = prompts
        self._n = asked.n or 1
        self._return_token_ids = asked.return_token_ids
        self._logprobs = asked.wants_logprobs
        self._common: dict[str, Any] = {"id": self.id, "created": int(time.time()), "model": model}
        self._started: set[int] = set()  # choices that have had a chunk
        self._num_tokens: Counter[int] = Counter()  # generated, of each choice and of those NOT_SHOWN
        self._num_cached: dict[int, int] = {}  # tokens of each prompt, once its first answer has ended
        self._frames: dict[int, Frame] = {}  # of choices, for chunks that say text only

    def _usage(self) -> Usage:
        """Of what has been counted so far."""
        prompt_tokens, completion_tokens = sum(map(len, self._prompts)), self._num_tokens.total()
        usage = Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )
        if len(self._num_cached) == len(self._prompts):
            usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=sum(self._num_cached.values()))
        return usage

    def _count(self, index: int, new: "Completion | TextDelta") -> None:
        self._num_tokens[index] += len(new.token_ids)
        if new.measured is not None and index % self._n == 0:
            self._num_cached[index // self._n] = new.measured.num_cached_tokens

    def _timings(self, index: int, new: "Completion | TextDelta") -> dict[str, Any]:
        """Where they are asked for and there: with a choice's end."""
        if new.measured is None or not self._asked.return_timings:
            return {}
        times, rest = new.measured.timings, self._num_tokens[index] - 1
        ttft, total = times["ttft"], cast(float, times["total"])
        speed = rest / (total - ttft) if ttft is not None and rest > 0 and total > ttft else None
        return {"timings": Timings(queue=times["queue"], ttft=ttft, total=total, tokens_per_second=speed)}

    def _start(self, index: int, delta: "TextDelta") -> bool:
        """Counts the delta's tokens; true for the first one of a choice."""
        self._count(index, delta)
        is_first = index not in self._started
        self._started.add(index)
        return is_first

    def _says_text_only(self, index: int, delta: "TextDelta") -> bool:
        """A chunk that differs from the choice's others in its text only, for all that the request asks for."""
        asked = self._logprobs or self._return_token_ids or self._asked.continuous_usage
        return not asked and delta.finish_reason is None and index in self._started

    def _counts_tokens(self, delta: "TextDelta") -> bool:
        """A delta whose text is held back is a chunk of its own only for those who count tokens."""
        return bool(delta.token_ids) and (self._logprobs or self._return_token_ids)

    def _prompt_logprobs(self, output: "Completion") -> dict[str, Any]:
        """Where they are asked for; vLLM's field."""
        if self._asked.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(output.prompt_tokens or (), self._asked.prompt_logprobs)}

    def _chunk_usage(self) -> dict[str, Any]:
        if self._asked.continuous_usage:
            return {"usage": self._usage()}
        return {"usage": None} if self._asked.include_usage else {}


class CompletionRenderer(Renderer):
    """text_completion objects, whole and in chunks. `echoed`: what the texts of each prompt begin with."""

    prefix = "cmpl-"

    def __init__(self, model: str, prompts: Sequence[list[int]], asked: "CompletionRequest", echoed: Sequence[str]):
        super().__init__(model, prompts, asked)
        self._num_top = asked.logprobs or 0
        self._echo = asked.echo
        self._echoed = echoed
        self._common["object"] = "text_completion"
        self._offsets: Counter[int] = Counter()  # characters of each choice's logprob tokens so far

    def whole(self, outputs: "list[Completion]") -> Reply:
        choices = []
        for index, output in enumerate(self._best(outputs)):
            self._count(index, output)
            choice = responses.CompletionChoice(
                index=index,
                text=self._echoed[index // self._n] + output.text,
                logprobs=self._choice_logprobs(index, output),
                finish_reason=cast(FinishReason, output.finish_reason),
                stop_reason=output.stop_reason,
                **self._prompt_logprobs(output),
                **self._ids(index, output.token_ids, is_first=True),
                **self._timings(index, output),
            )
            choices.append(choice)
        return responses.CompletionReply(**self._common, choices=choices, usage=self._usage())

    def events(self, index: int, delta: "TextDelta") -> bytes:
        if not self._says_text_only(index, delta):
            return b"".join(event(chunk.json_bytes()) for chunk in self._chunks(index, delta))
        self._count(index, delta)
        if index not in self._frames:
            self._frames[index] = Frame(
                lambda text: self._chunk(index, text=text, logprobs=None, finish_reason=None, stop_reason=None)
            )
        return self._frames[index].event(delta.text) if delta.text else b""

    def _chunks(self, index: int, delta: "TextDelta") -> Iterable[Reply]:
        is_first = self._start(index, delta)
        text = (self._echoed[index // self._n] if is_first else "") + delta.text
        if not (text or self._counts_tokens(delta)) and delta.finish_reason is None:
            return
        yield self._chunk(
            index,
            text=text,
            logprobs=self._choice_logprobs(index, delta),
            finish_reason=cast("FinishReason | None", delta.finish_reason),
            stop_reason=delta.stop_reason,
            **self._ids(index, delta.token_ids, is_first),
            **self._timings(index, delta),
        )

    def _chunk(self, index: int, **fields: Any) -> Reply:
        choice = responses.CompletionChoice(index=index, **fields)
        return responses.CompletionReply(**self._common, choices=[choice], **self._chunk_usage())

    def _best(self, outputs: "list[Completion]") -> "list[Completion]":
        """Of each prompt's answers the n likeliest per token, the best first. The others' tokens count, too."""
        num_drawn = len(outputs) // len(self._prompts)
        if num_drawn == self._n:
            return outputs
        best = []
        for first in range(0, len(outputs), num_drawn):
            ranked = sorted(outputs[first : first + num_drawn], key=_mean_logprob, reverse=True)
            best += ranked[: self._n]
            self._num_tokens[NOT_SHOWN] += sum(len(output.token_ids) for output in ranked[self._n :])
        return best

    def usage_chunk(self) -> Reply:
        return responses.CompletionReply(**self._common, choices=[], usage=self._usage())

    def _choice_logprobs(self, index: int, new: "Completion | TextDelta") -> responses.CompletionLogprobs | None:
        """Of the tokens that are new, after those before them; the prompt's are the first."""
        if not self._logprobs:
            return None
        echoed = (new.prompt_tokens or ()) if self._echo else ()
        entries, offset = [*echoed, *(new.logprobs or ())], self._offsets[index]
        self._offsets[index] += sum(len(entry.token) for entry in entries)
        as_ids = self._asked.return_tokens_as_token_ids
        return completion_logprobs(entries, offset, num_top=self._num_top, as_ids=as_ids)

    def _ids(self, index: int, token_ids: Iterable[int], is_first: bool) -> dict[str, Any]:
        if not self._return_token_ids:
            return {}
        return {"token_ids": list(token_ids)} | (
            {"prompt_token_ids": self._prompts[index // self._n]} if is_first else {}
        )


def _mean_logprob(output: "Completion") -> float:
    assert output.logprobs, "best_of needs logprobs"
    return sum(entry.logprob for entry in output.logprobs) / len(output.logprobs)


class ChatRenderer(Renderer):
    """chat.completion objects and chat.completion.chunk objects, of one prompt."""

    prefix = "chatcmpl-"

    def __init__(self, *args: Any, form: "AnswerForm", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._form = form
        self._answers = [form.answer() for _ in range(self._n)]

    def _usage(self) -> Usage:
        usage = super()._usage()
        if self._form.thinks:
            num_reasoning = sum(answer.num_reasoning_tokens for answer in self._answers)
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=num_reasoning)
        return usage

    def whole(self, outputs: "list[Completion]") -> Reply:
        choices = []
        for index, (output, answer) in enumerate(zip(outputs, self._answers, strict=True)):
            self._count(index, output)
            message = answer.message(answer.push(output.text, output.token_ids, is_last=True))
            choice = responses.ChatChoice(
                index=index,
                message=message,
                logprobs=self._choice_logprobs(output) if self._logprobs else None,
                finish_reason=answer.finish_reason(cast(str, output.finish_reason)),
                stop_reason=output.stop_reason,
                **self._ids(output.token_ids),
                **self._timings(index, output),
            )
            choices.append(choice)
        return responses.ChatReply(
            **self._common,
            object="chat.completion",
            choices=choices,
            usage=self._usage(),
            **self._prompt_logprobs(outputs[0]),
            **self._prompt_ids(),
        )

    def events(self, index: int, delta: "TextDelta") -> bytes:
        is_plain = self._says_text_only(index, delta)
        is_last = delta.finish_reason is not None
        new = self._answers[index].push(delta.text, delta.token_ids, is_last=is_last)
        if not is_plain or new.reasoning or new.calls:
            return b"".join(event(chunk.json_bytes()) for chunk in self._chunks(index, delta, new))
        self._count(index, delta)
        if index not in self._frames:
            self._frames[index] = Frame(lambda text: self._chunk(index, ChatDelta(content=text)))
        return self._frames[index].event(new.content) if new.content else b""

    def _chunks(self, index: int, delta: "TextDelta", new: "AnswerDelta") -> Iterable[Reply]:
        """A choice's first chunk gives the role, its last one has an empty delta and the finish reason."""
        if self._start(index, delta):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), **self._prompt_ids())
        token_ids, logprobs = list(delta.token_ids), self._chunk_logprobs(delta)
        answer = self._answers[index]
        deltas = list(answer.deltas(new))
        if not deltas and delta.finish_reason is None and self._counts_tokens(delta):
            deltas = [ChatDelta(content="")]
        for each in deltas:
            yield self._chunk(index, each, token_ids, logprobs)
            token_ids, logprobs = [], None
        if delta.finish_reason is not None:
            finish = {"finish_reason": answer.finish_reason(delta.finish_reason), "stop_reason": delta.stop_reason}
            finish |= self._timings(index, delta)
            yield self._chunk(index, ChatDelta(), token_ids, logprobs, finish=finish)

    def usage_chunk(self) -> Reply:
        return responses.ChatChunk(**self._common, object="chat.completion.chunk", choices=[], usage=self._usage())

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        token_ids: Iterable[int] = (),
        logprobs: responses.ChatLogprobs | None = None,
        finish: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Reply:
        finish = finish or {"finish_reason": None}
        choice = responses.ChatChunkChoice(
            index=index, delta=delta, logprobs=logprobs, **finish, **self._ids(token_ids)
        )
        return responses.ChatChunk(
            **self._common, object="chat.completion.chunk", choices=[choice], **self._chunk_usage(), **fields
        )

    def _chunk_logprobs(self, delta: "TextDelta") -> responses.ChatLogprobs | None:
        return self._choice_logprobs(delta) if self._logprobs and delta.token_ids else None

    def _choice_logprobs(self, new: "Completion | TextDelta") -> responses.ChatLogprobs:
        return chat_logprobs(new.logprobs or (), as_ids=self._asked.return_tokens_as_token_ids)

    def _ids(self, token_ids: Iterable[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._return_token_ids else {}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._prompts[0]} if self._return_token_ids else {}
