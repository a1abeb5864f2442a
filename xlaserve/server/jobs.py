"""From the JSON of one request to its answer, the same over HTTP and in a batch. Knows of no connection."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from xlaserve.engine.generations import AnyParams, Generations, Params, collect
from xlaserve.errors import InvalidRequest
from xlaserve.scheduling_params import SchedulingParams
from xlaserve.server import sse
from xlaserve.server.answer_form import AnswerForm, ModelText
from xlaserve.server.protocol.chat import ChatRequest, parse_chat
from xlaserve.server.protocol.completion import CompletionRequest, parse_completion
from xlaserve.server.render import ChatRenderer, CompletionRenderer, Renderer
from xlaserve.server.responses import Reply
from xlaserve.server.tokens import chat_ids, prompt_ids, truncated

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService
    from xlaserve.engine.tokenizer import Tokenizer

_NO_TEMPLATES = (
    "chat_template: this server takes no templates from clients. Leave it out, or have the server started with "
    "server.allow_chat_template: true, or with this template as its own: --chat-template FILE."
)


class Asked(Protocol):
    """What the engine needs to know of a request beside its prompts and params."""

    request_id: str | None

    def scheduling_params(self, tenant: str) -> SchedulingParams: ...


class Named(Protocol):
    """Whoever writes an answer has given it its id."""

    id: str


@dataclass(frozen=True)
class Job(ABC):
    """A request that has been checked: what the engine is to do, and who writes the answer. `prompts` are token ids."""

    asked: Asked
    params: AnyParams
    prompts: list[list[int]]
    renderer: Named

    def start(
        self, service: "GenerationService", scheduling: SchedulingParams, check: Callable[[], None]
    ) -> Generations:
        """Submits it to the engine; `check` and the errors: see Generations, whose `abort` must be called."""
        return Generations(service, self.prompts, self.params, self.renderer.id, scheduling=scheduling, check=check)

    def whole(self, service: "GenerationService", scheduling: SchedulingParams, check: Callable[[], None]) -> Reply:
        """The whole answer, once it is there; the rest as in `start`."""
        return self.finish(self.start(service, scheduling, check))

    def finish(self, generations: Generations) -> Reply:
        """The whole answer, once what has been started is done."""
        try:
            return self._answer(generations)
        finally:
            generations.abort()

    @abstractmethod
    def _answer(self, generations: Generations) -> Reply: ...


@dataclass(frozen=True)
class Recipe:
    """What the same answer can be written from in another process, beside the prompts: see `workers.restoring`.

    data: the request's JSON as it came; more: what else it takes, likewise JSON. keep: takes the id and the JSON of an
    answer that is to be stored.
    """

    kind: Literal["completion", "chat", "responses"]
    data: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[str, bytes], None] = lambda answer_id, answer: None


@dataclass(frozen=True)
class TextJob(Job):
    """One whose answer can be streamed."""

    asked: CompletionRequest | ChatRequest
    params: Params
    renderer: Renderer
    recipe: Recipe

    @abstractmethod
    def stream(self, generations: Generations) -> Iterator[bytes]:
        """The answer as server-sent events, as it comes."""


@dataclass(frozen=True)
class _ChoicesJob(TextJob):
    """Of completions and chat completions."""

    renderer: CompletionRenderer | ChatRenderer

    def _answer(self, generations: Generations) -> Reply:
        return self.renderer.whole(collect(generations))

    def stream(self, generations: Generations) -> Iterator[bytes]:
        return sse.stream(generations, self.renderer, include_usage=self.asked.include_usage)


def completion_job(service: "GenerationService", data: dict[str, Any]) -> Job:
    """Raises InvalidRequest."""
    asked = parse_completion(data)
    limit = service.info.max_model_len
    special = asked.add_special_tokens is not False
    prompts = [
        prompt_ids(service.tokenizer, prompt, max_model_len=limit, add_special_tokens=special)
        for prompt in asked.prompt
    ]
    params = asked.sampling_params(service.info.sampling_defaults)
    kept = [truncated(ids, asked, _room(params), service.info) for ids in prompts]
    echoed = [_shown(*each, asked, service.tokenizer) for each in zip(asked.prompt, prompts, kept, strict=True)]
    return write_completion(service, data, asked, kept, echoed)


def write_completion(
    model: ModelText, data: dict[str, Any], asked: CompletionRequest, prompts: list[list[int]], echoed: list[str]
) -> TextJob:
    """The job whose prompts are known; `echoed`: see CompletionRenderer."""
    params = asked.sampling_params(model.info.sampling_defaults)
    renderer = CompletionRenderer(model.info.name, prompts, asked, echoed)
    return _ChoicesJob(asked, params, prompts, renderer, Recipe("completion", data, {"echoed": echoed}))


def _shown(
    prompt: str | list[int], ids: list[int], kept: list[int], asked: CompletionRequest, tokenizer: "Tokenizer"
) -> str:
    """What an answer repeats of a prompt: text as it came, if all of it is kept."""
    if not asked.echo:
        return ""
    if isinstance(prompt, str) and len(kept) == len(ids):
        return prompt
    return tokenizer.decode(kept, skip_special_tokens=asked.skip_special_tokens)


def chat_job(service: "GenerationService", data: dict[str, Any]) -> Job:
    """Raises InvalidRequest."""
    return write_chat(chat_form(service, data))


def write_chat(form: AnswerForm) -> TextJob:
    """The job whose prompt is known."""
    prompts = [form.prompt_ids]
    renderer = ChatRenderer(form.model.info.name, prompts, form.asked, form=form)
    return _ChoicesJob(form.asked, form.sampling_params(), prompts, renderer, Recipe("chat", form.data))


def chat_form(service: "GenerationService", data: dict[str, Any]) -> AnswerForm:
    """The chat request `data`, checked, and the prompt that its messages make. Raises InvalidRequest."""
    asked = parse_chat(data)
    if asked.chat_template is not None and not service.info.takes_chat_template:
        raise InvalidRequest(_NO_TEMPLATES, param="chat_template")
    tools = [tool.for_template() for tool in asked.offered_tools]
    ids = chat_ids(
        service.tokenizer,
        asked.messages,
        add_special_tokens=asked.add_special_tokens is True,
        max_model_len=service.info.max_model_len,
        chat_template=asked.chat_template,
        tools=tools,
        documents=asked.documents,
        continue_final_message=asked.continue_final_message,
        reasoning_effort=asked.reasoning_effort,
        variables=asked.chat_template_kwargs,
        add_generation_prompt=asked.add_generation_prompt,
    )
    params = asked.sampling_params(service.info.sampling_defaults)
    return AnswerForm(service, asked, truncated(ids, asked, _room(params), service.info), data)


def _room(params: Params) -> int:
    """For an answer, at least: in tokens."""
    return 1 if params.max_tokens is None else params.max_tokens
