"""Follows several generations on one thread, and gathers what each has produced. Knows no jax and no HTTP."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from xlaserve.engine.completion import Completion
from xlaserve.engine.news import News
from xlaserve.errors import EngineUnavailable, GenerationFailed, Overloaded, RequestTimedOut, XlaserveError
from xlaserve.sampling_params import BeamSearchParams, PoolingParams, SamplingParams
from xlaserve.scheduling_params import NO_PREFERENCE, SchedulingParams

if TYPE_CHECKING:
    from xlaserve.core.outputs import EngineOutput
    from xlaserve.engine.beam_search import BeamAnswer
    from xlaserve.engine.generation import Generation
    from xlaserve.engine.output_processor import TextDelta
    from xlaserve.engine.service import GenerationService

Params = SamplingParams | BeamSearchParams  # of what generates
AnyParams = Params | PoolingParams

MAX_WAIT_SECONDS = 60.0  # of what is not the first, for a place in the queue
POLL_SECONDS = 0.5  # how soon what `check` looks at is noticed while nothing is generated


class Generations:
    """n generations per prompt: iterating yields (index, TextDelta) as they come, until all have finished. `new` yields
    them without waiting; then `is_over` tells whether there will be more, and `wait` waits for it.

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
        self.check = check
        self.by_index: list[Generation | BeamAnswer] = []
        self._running: dict[int, Generation | BeamAnswer] = {}
        self.news = News()
        self._has_stops = any(isinstance(one, SamplingParams) and one.stop for one in each)
        self._service = service
        self._scheduling = scheduling
        self._deadline = None if scheduling.timeout is None else time.monotonic() + scheduling.timeout
        self._later: deque[tuple[list[int], SamplingParams | PoolingParams, str]] = deque()
        self._at_once = at_once or len(prompts)
        self._full_since: float | None = None  # the queue, while none is running
        sampled = [one for one in each if not isinstance(one, BeamSearchParams)]
        if len(sampled) == len(each):  # all of the first are queued or none
            first = slice(self._at_once)
            submitted = service.submit_all(prompts[first], sampled[first], ids[first], self.news, scheduling)
            for prompt_ids, generation in zip(prompts, submitted, strict=False):
                self._follow(prompt_ids, generation)
            rest = slice(self._at_once, None)
            self._later.extend(zip(prompts[rest], sampled[rest], ids[rest], strict=True))
            return
        try:
            for prompt_ids, one, its_id in zip(prompts, each, ids, strict=True):
                if isinstance(one, BeamSearchParams):
                    self._follow(prompt_ids, service.beam_search(prompt_ids, one, its_id, self.news, scheduling))
                else:
                    self._follow(prompt_ids, service.submit(prompt_ids, one, its_id, self.news, scheduling))
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
        while self._later and len(self._running) < self._at_once:
            prompt_ids, params, its_id = self._later[0]
            try:
                generation = self._service.submit(prompt_ids, params, its_id, self.news, self._time_left())
            except Overloaded:
                now = time.monotonic()
                self._full_since = self._full_since or now
                if not self._running and now - self._full_since > MAX_WAIT_SECONDS:
                    raise
                return
            self._full_since = None
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

    @property
    def is_over(self) -> bool:
        return not (self._running or self._later)

    def __iter__(self) -> "Iterator[tuple[int, TextDelta]]":
        while not self.is_over:
            anything_new = False
            for each in self.new():
                anything_new = True
                yield each
            if not anything_new:
                self.wait()

    def look_for_ends(self) -> None:
        """Nobody is interested in pieces: unless stop strings have to be found in them, only ends are waited for."""
        self.news.of_ends = not self._has_stops

    def wait(self) -> None:
        """For what is new, or until it is time to `check`."""
        self.news.wait(POLL_SECONDS)

    def new(self) -> "Iterator[tuple[int, TextDelta]]":
        """One delta of each that has something new: queued ones hold up no other, a stop string ends its at once."""
        if self._later:
            self._submit_more()
        self.check()
        self.news.clear()  # before looking: what comes after the look sets it again
        for index, generation in list(self._running.items()):
            delta = generation.next(timeout=0)
            if delta is None:
                continue
            if delta.finish_reason is not None:
                del self._running[index]
                if error := _failure(delta):
                    if delta.token_ids:  # that came with its end
                        yield index, replace(delta, finish_reason=None)
                    raise error
            yield index, delta

    def outputs(self) -> "Iterator[tuple[int, EngineOutput]]":
        """What the engine has said, errors too: in place of `new`, where text is made of it elsewhere. Checks nothing.

        Not of beam searches, nor with `at_once`.
        """
        for index, generation in list(self._running.items()):
            output = cast("Generation", generation).take()
            if output is not None:
                if output.finish_reason is not None:
                    self._running.pop(index, None)  # may have been aborted meanwhile
                yield index, output


def _failure(delta: "TextDelta") -> XlaserveError | None:
    match delta.finish_reason:
        case "error":
            return GenerationFailed(delta.error or "The engine could not finish this request.")
        case "abort":
            return EngineUnavailable(delta.error or "The server has ended this request: it is shutting down.")
        case "timeout":
            return RequestTimedOut(delta.error)
    return None


def collect(generations: Generations) -> list[Completion]:
    """Waits for all generations and returns their outputs, in the order of the prompts and of their choices."""
    generations.look_for_ends()
    collected: dict[int, Completion] = {}
    for index, delta in generations:
        if index not in collected:
            collected[index] = Completion(generations.prompts[index])
        collected[index].add(delta)
    return [collected[index] for index in sorted(collected)]
