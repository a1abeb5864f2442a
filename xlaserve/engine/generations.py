"""Follows several generations on one thread, and gathers what each has produced. Knows no jax and no HTTP."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xlaserve.engine.completion import Completion
from xlaserve.errors import EngineUnavailable, GenerationFailed, Overloaded, RequestTimedOut
from xlaserve.sampling_params import BeamSearchParams, PoolingParams, SamplingParams
from xlaserve.scheduling_params import NO_PREFERENCE, SchedulingParams

if TYPE_CHECKING:
    from xlaserve.engine.beam_search import BeamAnswer
    from xlaserve.engine.output_processor import TextDelta
    from xlaserve.engine.service import Generation, GenerationService

Params = SamplingParams | BeamSearchParams  # of what generates
AnyParams = Params | PoolingParams

MAX_WAIT_SECONDS = 60.0  # of what is not the first, for a place in the queue
POLL_SECONDS = 0.5  # how soon what `check` looks at is noticed while nothing is generated


class Generations:
    """n generations per prompt: iterating yields (index, TextDelta) as they come, until all have finished.

    A beam search is one, too: each of its n answers comes as one delta, when all are there.

    params: of all, or one per prompt; scheduling: of all. at_once: so many sampled or pooled prompts are in the engine
    at a time, the others follow as these end, so that one client does not fill the queue; None: all of them.

    `check` is called twice a second at least, and ends the iteration by raising. Raises EngineUnavailable when the
    engine has dropped a generation, GenerationFailed when one could not be finished, RequestTimedOut when one had no
    chance to begin in time.
    `abort()` must be called in the end, whatever happened: it stops what still runs.
    """

    def __init__(
        self,
        service: "GenerationService",
        prompts: Sequence[list[int]],
        params: AnyParams | Sequence[AnyParams],
        request_id: str,
        *,
        scheduling: SchedulingParams = NO_PREFERENCE,
        check: Callable[[], None] = lambda: None,
        at_once: int | None = None,
    ):
        each = [params] * len(prompts) if isinstance(params, AnyParams) else params
        ids = [f"{request_id}-{number}" for number in range(len(prompts))]
        self.prompts: list[list[int]] = []  # by index
        self._check = check
        self.by_index: list[Generation | BeamAnswer] = []
        self._running: dict[int, Generation | BeamAnswer] = {}
        self._news = threading.Event()  # set when any of them has something new
        self._service = service
        self._scheduling = scheduling
        self._deadline = None if scheduling.timeout is None else time.monotonic() + scheduling.timeout
        self._later: deque[tuple[list[int], SamplingParams | PoolingParams, str]] = deque()
        self._at_once = at_once or len(prompts)
        sampled = [one for one in each if not isinstance(one, BeamSearchParams)]
        if len(sampled) == len(each):  # all of the first are queued or none
            first = slice(self._at_once)
            submitted = service.submit_all(prompts[first], sampled[first], ids[first], self._news, scheduling)
            for prompt_ids, generation in zip(prompts, submitted, strict=False):
                self._follow(prompt_ids, generation)
            rest = slice(self._at_once, None)
            self._later.extend(zip(prompts[rest], sampled[rest], ids[rest], strict=True))
            return
        try:
            for prompt_ids, one, its_id in zip(prompts, each, ids, strict=True):
                if isinstance(one, BeamSearchParams):
                    self._follow(prompt_ids, service.beam_search(prompt_ids, one, its_id, self._news, scheduling))
                else:
                    self._follow(prompt_ids, service.submit(prompt_ids, one, its_id, self._news, scheduling))
        except BaseException:
            self.abort()
            raise

    def _follow(self, prompt_ids: list[int], generation: "Generation | BeamAnswer") -> None:
        for choice in (generation, *generation.forks):
            self._running[len(self.by_index)] = choice
            self.by_index.append(choice)
            self.prompts.append(prompt_ids)

    def _submit_more(self) -> None:
        """Those whose turn has come; where the queue has no place they wait, MAX_WAIT_SECONDS beside none at most."""
        waits_since = time.monotonic()
        while self._later and len(self._running) < self._at_once:
            prompt_ids, params, its_id = self._later[0]
            try:
                generation = self._service.submit(prompt_ids, params, its_id, self._news, self._time_left())
            except Overloaded:
                if self._running:
                    return
                if time.monotonic() - waits_since > MAX_WAIT_SECONDS:
                    raise
                self._check()
                time.sleep(POLL_SECONDS)
            else:
                self._later.popleft()
                self._follow(prompt_ids, generation)

    def _time_left(self) -> SchedulingParams:
        if self._deadline is None:
            return self._scheduling
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RequestTimedOut("The timeout of this request was over before all of it was computed.")
        return replace(self._scheduling, timeout=left)

    def abort(self) -> None:
        """Idempotent; finished generations are not touched."""
        self._later.clear()
        while self._running:
            self._running.popitem()[1].abort()

    def __iter__(self) -> "Iterator[tuple[int, TextDelta]]":
        while self._running or self._later:
            self._submit_more()
            self._check()
            self._news.clear()  # before looking: what comes after the look sets it again
            anything_new = False
            # Each is looked at in turn, so that a queued one holds up no other and a stop string ends its generation
            # at once.
            for index, generation in list(self._running.items()):
                delta = generation.next(timeout=0)
                if delta is None:
                    continue
                anything_new = True
                if delta.finish_reason is not None:
                    del self._running[index]
                _raise_if_failed(delta)
                yield index, delta
            if not anything_new:
                self._news.wait(POLL_SECONDS)


def _raise_if_failed(delta: "TextDelta") -> None:
    if delta.finish_reason == "error":
        raise GenerationFailed(delta.error or "The engine could not finish this request.")
    if delta.finish_reason == "abort":
        raise EngineUnavailable(delta.error or "The server has ended this request: it is shutting down.")
    if delta.finish_reason == "timeout":
        raise RequestTimedOut(delta.error)


def collect(generations: Generations) -> list[Completion]:
    """Waits for all generations and returns their outputs, in the order of the prompts and of their choices."""
    collected: dict[int, Completion] = {}
    for index, delta in generations:
        if index not in collected:
            collected[index] = Completion(generations.prompts[index])
        collected[index].add(delta)
    return [collected[index] for index in sorted(collected)]
