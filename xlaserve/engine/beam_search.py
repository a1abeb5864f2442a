"""Drives a beam search: each step asks the engine for one token of every live beam, and picks the next beams.

To the scheduler a step is some requests of one token each. They find all blocks of the beams they continue in the
prefix cache, where the requests before them left them: full blocks are shared, only a partly filled one is copied.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from xlaserve.core.outputs import EngineOutput, TokenLogprobs
from xlaserve.core.request import Request
from xlaserve.engine.beams import Beam, Beams
from xlaserve.engine.engine_loop import EngineLoop
from xlaserve.engine.news import News
from xlaserve.engine.output_processor import Measured, OutputProcessor, TextDelta
from xlaserve.sampling_params import BeamSearchParams, SamplingParams


class BeamSearch:
    """One search under way: it goes on while its answers are polled, on one thread; `abort` from the same.

    request: as it would be for a single answer; it is never queued itself. num_alternatives: of each token, what
    `Beams` needs at least.
    """

    def __init__(
        self,
        loop: EngineLoop,
        request: Request,
        params: BeamSearchParams,
        num_alternatives: int,
        news: News | None,
    ):
        self.request = request
        self._loop = loop
        self._params = params
        self._step_params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=num_alternatives)
        self._news = news
        self._beams = Beams(
            params.width,
            length_penalty=params.length_penalty,
            stop_ids=request.stop_ids,
            max_tokens=request.max_total_tokens - request.num_prompt_tokens,
        )
        self._num_requests = 0
        self._found: list[TokenLogprobs] = []  # by this step, of the first beams
        self._ended: EngineOutput | None = None  # what ended the search before its time
        self._end_time: float | None = None
        self.first = self._request_after(Beam())
        self._streams = [loop.submit(self.first, news)]  # of the other beams, in order

    def _request_after(self, beam: Beam) -> Request:
        prompt_ids = [*self.request.prompt_ids, *beam.token_ids]
        number, self._num_requests = self._num_requests, self._num_requests + 1
        return replace(
            self.request,
            request_id=f"{self.request.request_id}-beam-{number}",
            prompt_ids=prompt_ids,
            params=self._step_params,
            max_total_tokens=len(prompt_ids) + 1,
            choice_index=number,
            keeps_rows=0 if number else self._params.width,
            continues=self.first if number else None,
            forks=[],
            block_tables=[],
            prefix_keys=[],
        )

    def poll(self, timeout: float | None) -> bool:
        """Goes on as far as it can; whether it is over. Waits for the engine up to `timeout` seconds, None: always.

        Raises EngineUnavailable when the engine has stopped.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._streams:
            output = self._streams[0].get(None if until is None else max(0.0, until - time.monotonic()))
            if output is None:
                return False
            del self._streams[0]
            if not output.logprobs:
                self._stop(output)
            else:
                self._found += output.logprobs
                if not self._streams:
                    self._next_step()
        return True

    def _next_step(self) -> None:
        self._beams.advance(self._found)
        self._found = []
        for beam in self._beams.live:
            self._streams.append(self._loop.submit(self._request_after(beam), self._news))
        if not self._streams:
            self._stop(None)

    def abort(self) -> None:
        """Stops what still runs. Idempotent."""
        if self._end_time is None:
            self._stop(EngineOutput(self.request.request_id, finish_reason="abort"))

    def _stop(self, ended: EngineOutput | None) -> None:
        self._ended = ended
        self._end_time = time.monotonic()
        for stream in self._streams:
            self._loop.abort(stream)
        self._streams = []
        self._loop.close(self.first)

    def answer(self, index: int) -> tuple[EngineOutput, float | None]:
        """The whole answer and its score, when the search is over. When its time was, the best that there was then."""
        ended, request_id = self._ended, self.request.request_id
        best = self._beams.best()
        out_of_time = ended is not None and "timeout" in (ended.stop_reason, ended.finish_reason)
        if (ended is None or out_of_time) and index < len(best):
            beam = best[index]
            return self._output(beam), beam.score(self._params.length_penalty)
        assert ended is not None
        return replace(ended, request_id=request_id), None

    def _output(self, beam: Beam) -> EngineOutput:
        last, request = beam.token_ids[-1], self.request
        is_stopped = last in request.stop_ids
        stop_reason = None
        if is_stopped:
            stop_reason = None if last in request.eos_ids else last
        elif self._ended is not None:
            stop_reason = "timeout"
        return EngineOutput(
            request.request_id,
            beam.token_ids,
            _cut(beam.logprobs, self._params.logprobs),
            "stop" if is_stopped else "length",
            stop_reason,
        )

    @property
    def timings(self) -> dict[str, float | None]:
        """Seconds from arrival: as `Generation.timings`; tokens are known only when all are."""
        times = {
            "queue": self.first.first_scheduled_time,
            "ttft": self._end_time,
            "total": self._end_time or time.monotonic(),
        }
        return {name: None if when is None else when - self.request.arrival_time for name, when in times.items()}


def _cut(logprobs: Iterable[TokenLogprobs], count: int | None) -> tuple[TokenLogprobs, ...] | None:
    """With as many alternatives as the request asked for."""
    return None if count is None else tuple(TokenLogprobs(each.logprob, each.top[:count]) for each in logprobs)


class BeamAnswer:
    """One answer of a search, to be polled like a `Generation`: its one piece comes when the search is over.

    forks: the other answers, of the first one.
    """

    def __init__(self, search: BeamSearch, index: int, make_processor: Callable[[], OutputProcessor]):
        self.forks: list[BeamAnswer] = []
        self._search = search
        self._index = index
        self._make_processor = make_processor
        self._is_given = False

    @property
    def request_id(self) -> str:
        return self._search.request.request_id

    @property
    def timings(self) -> dict[str, float | None]:
        return self._search.timings

    def next(self, timeout: float | None = None) -> TextDelta | None:
        """The answer; None when it is not there within `timeout` seconds, or has been given."""
        if self._is_given or not self._search.poll(timeout):
            return None
        self._is_given = True
        output, score = self._search.answer(self._index)
        measured = Measured(self._search.first.num_cached_tokens, self.timings)
        return replace(self._make_processor().push(output), score=score, measured=measured)

    def abort(self) -> None:
        """Ends the whole search; harmless when it has ended."""
        self._search.abort()
