"""Follows the generations of one HTTP request, and gathers what each has produced. No flask here."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from xlaserve.engine.completion import Completion
from xlaserve.errors import EngineUnavailable
from xlaserve.server.errors import ClientGone, GenerationFailed

if TYPE_CHECKING:
    from xlaserve.engine.output_processor import TextDelta
    from xlaserve.engine.service import Generation, GenerationService
    from xlaserve.sampling_params import SamplingParams

POLL_SECONDS = 0.5  # how soon a closed connection is noticed while nothing is generated


class Generations:
    """The generations of one HTTP request, one per prompt: iterating yields (index, TextDelta) as they come.

    Iteration ends when all have finished. It raises ClientGone when `client_gone()` is true, EngineUnavailable when
    `check()` raises it or the engine has dropped a generation, GenerationFailed when one could not be finished.
    `abort()` must be called in the end, whatever happened: it stops what still runs.
    """

    def __init__(
        self,
        service: "GenerationService",
        prompts: Sequence[list[int]],
        params: "SamplingParams",
        request_id: str,
        *,
        client_gone: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
    ):
        self.prompts = prompts
        self._client_gone = client_gone
        self._check = check
        self.by_index: list[Generation] = []
        self._running: dict[int, Generation] = {}
        self._news = threading.Event()  # set when any of them has something new
        try:
            for index, prompt_ids in enumerate(prompts):
                generation = service.submit(prompt_ids, params, f"{request_id}-{index}", news=self._news)
                self.by_index.append(generation)
                self._running[index] = generation
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Idempotent; finished generations are not touched."""
        while self._running:
            self._running.popitem()[1].abort()

    def __iter__(self) -> "Iterator[tuple[int, TextDelta]]":
        while self._running:
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
                if self._client_gone():
                    raise ClientGone
                if delta.finish_reason is not None:
                    del self._running[index]
                _raise_if_failed(delta)
                yield index, delta
            if not anything_new:
                self._news.wait(POLL_SECONDS)
                if self._client_gone():
                    raise ClientGone


def _raise_if_failed(delta: "TextDelta") -> None:
    if delta.finish_reason == "error":
        raise GenerationFailed(delta.error or "The engine could not finish this request.")
    if delta.finish_reason == "abort":
        raise EngineUnavailable(delta.error or "The server has ended this request: it is shutting down.")


def collect(generations: Generations) -> list[Completion]:
    """Waits for all generations and returns their outputs, in the order of the prompts."""
    collected = [Completion(prompt_ids) for prompt_ids in generations.prompts]
    for index, delta in generations:
        collected[index].add(delta)
    return collected
