"""What server, CLI and `LLM` use: checks a request, hands it to the engine's thread, and turns its tokens into text.

Text is made on the caller's thread, so that a slow one holds up nobody else.
"""

import operator
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from xlaserve.core.bad_words import BadWords
from xlaserve.core.constraint import AllOf
from xlaserve.core.reading import make_reading
from xlaserve.core.request import Request
from xlaserve.engine.bad_words import bad_word_ids
from xlaserve.engine.beam_search import BeamAnswer, BeamSearch
from xlaserve.engine.engine_loop import EngineLoop, EngineState
from xlaserve.engine.generation import Generation
from xlaserve.engine.grammar.compiler import GrammarCompiler
from xlaserve.engine.idle_sleeper import IdleSleeper
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.metrics import EngineMetrics
from xlaserve.engine.model_admin import ModelAdmin, SleepLevel
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.news import News
from xlaserve.engine.output_processor import OutputProcessor
from xlaserve.engine.output_stream import OutputStream
from xlaserve.engine.reasoning_rules import with_reasoning
from xlaserve.engine.startup import NOT_MEASURED, StartupFacts
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.engine.weights_store import Store
from xlaserve.errors import InvalidRequest, ModelAsleep
from xlaserve.runner.late_programs import LatePrograms
from xlaserve.sampling_params import MAX_LOGPROBS, BeamSearchParams, PoolingParams, SamplingParams
from xlaserve.scheduling_params import NO_PREFERENCE, SchedulingParams

_Begun = TypeVar("_Begun")


class GenerationService:
    """The engine with its thread. All methods may be called from any thread.

    max_waiting: requests that may queue beside those that run. max_waiting_tokens: see EngineLoop. store: of weights,
    None: they stay as they are. late: programs that are not there yet. sleep_after: seconds without a request, None: it
    never sleeps by itself.
    """

    def __init__(
        self,
        engine: LLMEngine,
        tokenizer: Tokenizer,
        info: ModelInfo,
        *,
        max_waiting: int = 1024,
        max_waiting_tokens: int | None = None,
        startup: StartupFacts = NOT_MEASURED,
        store: Store | None = None,
        late: LatePrograms | None = None,
        sleep_after: float | None = None,
        sleep_level: SleepLevel = 1,
    ):
        self.info = info
        self.tokenizer = tokenizer
        self.startup = startup
        self.late = late or LatePrograms({}, lambda key, program: None, 0)
        self.metrics = EngineMetrics(info.name, engine, startup)
        self._scheduler = engine.scheduler
        self._grammars = GrammarCompiler(tokenizer, info.vocab_size, info.eos_ids)
        self._loop = EngineLoop(
            engine,
            self.metrics,
            max_requests=engine.scheduler.max_num_seqs + max_waiting,
            max_waiting_tokens=max_waiting_tokens,
        )
        self.admin = ModelAdmin(self._loop, engine, self.metrics, store) if store else None
        self._idle_sleeper = IdleSleeper(self.admin, sleep_after, sleep_level) if self.admin and sleep_after else None

    @property
    def state(self) -> EngineState:
        return self._loop.state

    @property
    def asleep(self) -> int:
        """The level of the model's sleep; 0: awake."""
        return self.admin.asleep if self.admin else 0

    @property
    def wakes_itself(self) -> bool:
        """Whether a request wakes it."""
        return self.admin is not None and self.admin.wakes_itself

    @property
    def weights_version(self) -> int:
        """Of the weights that newcomers get: 0 until they are replaced."""
        return self._scheduler.weights.newest

    def seconds_since_progress(self) -> float:
        """How long the present step has been running; 0 when idle."""
        return self._loop.seconds_since_progress()

    def free_blocks(self) -> int:
        """Over all layer groups."""
        blocks = self._scheduler.block_manager
        return blocks.num_blocks - blocks.num_used_blocks

    def retry_after(self) -> int:
        """Seconds until a request refused now may find a place, at the present rate; from 1 to 60."""
        return self._loop.retry_after()

    @property
    def max_num_seqs(self) -> int:
        """Requests computed at the same time."""
        return self._scheduler.max_num_seqs

    @property
    def num_waiting(self) -> int:
        """Requests that are not being computed, those that the engine's thread has not seen yet among them."""
        return max(0, self._loop.num_requests - len(self._scheduler.running))

    @property
    def takes_priority(self) -> bool:
        """Whether the scheduler's policy heeds the priority of a request."""
        return self._scheduler.waiting.takes_priority

    def stats(self) -> dict[str, int]:
        scheduler = self._scheduler
        return {
            "running": len(scheduler.running),
            "waiting": scheduler.num_waiting,
            "free_blocks": self.free_blocks(),
            "preemptions": scheduler.num_preemptions,
            "restores": scheduler.block_manager.num_restores,
        }

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | PoolingParams,
        request_id: str | None = None,
        news: News | None = None,
        scheduling: SchedulingParams = NO_PREFERENCE,
    ) -> Generation:
        """Queues a request and returns its generation at once. `news` is set whenever that has something new.

        With n > 1 there are further generations, in its `forks`.

        max_tokens beyond what the context or the KV pool has left is cut to that: the output then ends with "length".
        Raises InvalidRequest for what cannot be served, Overloaded when the queue is full, EngineUnavailable when the
        engine takes no requests.
        """
        return self.submit_all([prompt_ids], [params], [request_id], news, scheduling)[0]

    def submit_all(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams | PoolingParams],
        request_ids: Sequence[str | None],
        news: News | None = None,
        scheduling: SchedulingParams = NO_PREFERENCE,
    ) -> list[Generation]:
        """`submit` for several prompts, each with its params and its id: all of them are queued or none."""
        num_answers, limit = sum(each.n for each in params), self._loop.max_requests
        if num_answers > limit:
            asked = f"n is {num_answers}" if len(prompts) == 1 else f"prompts and n ask for {num_answers} answers"
            message = f"{asked}: this server takes {limit} requests at once, a choice is one."
            raise InvalidRequest(message, param="n" if len(prompts) == 1 else "prompt")
        requests = [
            self._request(prompt_ids, its_params, request_id, scheduling)
            for prompt_ids, its_params, request_id in zip(prompts, params, request_ids, strict=True)
        ]
        generations = []
        for stream in self._awake(lambda: self._loop.submit_all(requests, news)):
            generation, *forks = (self._follow(each) for each in (stream, *stream.forks))
            generation.forks = forks
            generations.append(generation)
        return generations

    def _awake(self, begin: Callable[[], _Begun]) -> _Begun:
        """What `begin` returns; it is called again where it has woken a model that slept because it was idle."""
        try:
            return begin()
        except ModelAsleep:
            if self.admin is None or not self.admin.wake_for_request():
                raise
            return begin()

    def beam_search(
        self,
        prompt_ids: Sequence[int],
        params: BeamSearchParams,
        request_id: str | None = None,
        news: News | None = None,
        scheduling: SchedulingParams = NO_PREFERENCE,
    ) -> BeamAnswer:
        """As `submit`, for the best answers that a search finds: the best of all, with the others in its `forks`.

        It goes on while the answers are polled. A deadline is the whole search's.
        """
        request = self._request(prompt_ids, params.greedy, request_id, scheduling)
        needed = params.width + len(request.stop_ids)
        limit = min(MAX_LOGPROBS, self.info.vocab_size)
        if needed > limit:
            message = f"beam_width is {params.width}: with {len(request.stop_ids)} tokens that end an answer it can be "
            raise InvalidRequest(f"{message}{limit - len(request.stop_ids)} at most.", param="beam_width")
        if params.width > self._loop.max_requests:
            message = f"beam_width is {params.width}: this server takes {self._loop.max_requests} requests at once."
            raise InvalidRequest(message, param="beam_width")
        num_alternatives = max(needed, params.logprobs or 0)
        search = self._awake(lambda: BeamSearch(self._loop, request, params, num_alternatives, news))

        def make_processor() -> OutputProcessor:
            return self._make_processor(request)

        best, *others = (BeamAnswer(search, index, make_processor) for index in range(params.n))
        best.forks = others
        return best

    def _request(
        self,
        prompt_ids: Sequence[int],
        asked: SamplingParams | PoolingParams,
        request_id: str | None,
        scheduling: SchedulingParams,
    ) -> Request:
        params = asked.sampling if isinstance(asked, PoolingParams) else asked
        try:
            prompt_ids = [operator.index(token_id) for token_id in prompt_ids]
        except TypeError:
            raise InvalidRequest("prompt: token ids must be integers.", param="prompt") from None
        self._check_ids(params)
        self.check_prompt(prompt_ids, params.max_tokens)
        if scheduling.priority != 0 and not self.takes_priority:
            message = "priority has no effect on this server: its scheduler.policy is not 'priority'. Leave it out."
            raise InvalidRequest(message, param="priority")
        bad_words = bad_word_ids(self.tokenizer, params.bad_words, self.info.vocab_size)
        limit = min(self.info.max_model_len, self.info.max_request_tokens)
        constraint = None
        if params.grammar is not None:
            constraint = self._grammars.constraint(params.grammar, more=params.ignore_eos)
        if params.reasoning:
            budget = params.thinking_token_budget
            constraint = with_reasoning(
                self.tokenizer, prompt_ids, self.info.vocab_size, budget=budget, answer=constraint
            )
        if longer := [ids for ids in bad_words if len(ids) > 1]:
            rule = BadWords(longer, prompt_ids, self.info.vocab_size)
            constraint = rule if constraint is None else AllOf([rule, constraint])
        now = time.monotonic()
        request = Request(
            request_id=request_id or f"gen-{secrets.token_hex(12)}",
            prompt_ids=prompt_ids,
            params=params,
            max_total_tokens=limit if params.max_tokens is None else min(len(prompt_ids) + params.max_tokens, limit),
            stop_ids=self.info.stop_ids(params),
            eos_ids=self.info.end_ids(params),
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            arrival_time=now,
            priority=scheduling.priority,
            tenant=scheduling.tenant,
            deadline=None if scheduling.timeout is None else now + scheduling.timeout,
            cache_salt=scheduling.cache_salt,
            constraint=constraint,
            forbidden_ids=tuple(ids[0] for ids in bad_words if len(ids) == 1),
            reading=make_reading(len(prompt_ids), asked),
        )
        _check_choice(request)
        for index in range(1, params.n):
            request.add_fork(f"{request.request_id}-{index}", index)
        return request

    def _follow(self, stream: OutputStream) -> Generation:
        return Generation(stream, self._make_processor(stream.request), self._loop)

    def _make_processor(self, request: Request) -> OutputProcessor:
        return OutputProcessor(self.tokenizer, request.prompt_ids, request.params, request.stop_ids)

    def _check_ids(self, params: SamplingParams) -> None:
        named = {
            "stop_token_ids": params.stop_token_ids,
            "logit_bias": [token for token, _ in params.biases],
            "allowed_token_ids": params.allowed_token_ids,
        }
        for name, ids in named.items():
            self._check_vocabulary(name, ids or ())

    def _check_vocabulary(self, name: str, ids: Collection[int]) -> None:
        size = self.info.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise InvalidRequest(f"{name}: token id {wrong} is not in the vocabulary (0 to {size - 1}).", param=name)

    def check_prompt(self, prompt_ids: Sequence[int], max_tokens: int | None) -> None:
        """Raises InvalidRequest, naming `prompt`, for one that cannot be served with an answer of `max_tokens`."""
        info = self.info
        if not prompt_ids:
            raise InvalidRequest("The prompt is empty: at least one token is needed.", param="prompt")
        self._check_vocabulary("prompt", prompt_ids)
        room = 0 if max_tokens == 0 else 1  # for the output
        if len(prompt_ids) + room > info.max_model_len:
            asked = room and (max_tokens or 1)
            raise InvalidRequest(
                f"This model's maximum context length is {info.max_model_len} tokens. However, you requested "
                f"{len(prompt_ids) + asked} tokens ({len(prompt_ids)} in the messages, {asked} in the completion). "
                "Please reduce the length of the messages or completion.",
                param="prompt",
                code="context_length_exceeded",
            )
        if len(prompt_ids) + room > info.max_request_tokens:
            raise InvalidRequest(
                f"The prompt has {len(prompt_ids)} tokens, but the KV cache of this server holds only "
                f"{info.max_request_tokens}, prompt and completion together. Please send a shorter prompt.",
                param="prompt",
                code="context_length_exceeded",
            )

    def shutdown(self, timeout: float) -> bool:
        """Takes no more requests, gives the present ones `timeout` seconds, aborts the rest, ends the thread.

        False: the thread hangs in a step, which nothing can cancel; the process should exit. Idempotent. A program that
        is being made in the background is not waited for: Python does that when it exits.
        """
        self.late.cancel()
        if self._idle_sleeper:
            self._idle_sleeper.stop()
        return self._loop.shutdown(timeout)


def _check_choice(request: Request) -> None:
    """Some token must be left to sample. Raises InvalidRequest."""
    if request.params.allowed_token_ids is None:
        return
    left = set(request.params.allowed_token_ids) - set(request.forbidden_ids)
    if not left:
        raise InvalidRequest("allowed_token_ids: bad_words forbid all of them.", param="allowed_token_ids")
    if request.params.min_tokens and left <= request.stop_ids:
        raise InvalidRequest("min_tokens: all of allowed_token_ids end the output at once.", param="min_tokens")
