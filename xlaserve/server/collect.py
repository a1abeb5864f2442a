"""Follows the generations of one HTTP request, and gathers what each has produced. No flask here."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xlaserve.errors import EngineUnavailable
from xlaserve.server.errors import ClientGone, GenerationFailed

if TYPE_CHECKING:
    from xlaserve.engine.output_processor import TextDelta, TokenLogprob
    from xlaserve.engine.service import Generation, GenerationService
    from xlaserve.sampling_params import SamplingParams

POLL_SECONDS = 0.5  # how soon a closed connection is noticed while nothing is generated
IDLE_SECONDS = 0.01  # between two looks at several generations none of which has anything new


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
        self._client_gone = client_gone
        self._check = check
        self.by_index: list[Generation] = []
        self._running: dict[int, Generation] = {}
        try:
            for index, prompt_ids in enumerate(prompts):
                generation = service.submit(prompt_ids, params, f"{request_id}-{index}")
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
            several = len(self._running) > 1
            anything_new = False
            for index, generation in list(self._running.items()):
                # One generation is waited for. Several are looked at in turn, so that a queued one holds up no other
                # and a stop string ends its generation at once.
                delta = generation.next(timeout=0 if several else POLL_SECONDS)
                if self._client_gone():
                    raise ClientGone
                if delta is None:
                    continue
                anything_new = True
                if delta.finish_reason is not None:
                    del self._running[index]
                _raise_if_failed(delta)
                yield index, delta
            if several and not anything_new:
                time.sleep(IDLE_SECONDS)


def _raise_if_failed(delta: "TextDelta") -> None:
    if delta.finish_reason == "error":
        raise GenerationFailed(delta.error or "The engine could not finish this request.")
    if delta.finish_reason == "abort":
        raise EngineUnavailable(delta.error or "The server has ended this request: it is shutting down.")


@dataclass
class Collected:
    """All that one generation has produced."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: "list[TokenLogprob] | None" = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: "TextDelta") -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(delta.logprobs)
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


def collect(generations: Generations, count: int) -> list[Collected]:
    """Waits for all `count` generations and returns their outputs by index."""
    collected = [Collected() for _ in range(count)]
    for index, delta in generations:
        collected[index].add(delta)
    return collected
