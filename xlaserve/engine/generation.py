"""One request under way, as its reader sees it: the outputs of the engine, as text. Knows no jax.

The engine may be in another process.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.request import Request
from xlaserve.engine.output_processor import Measured, OutputProcessor, TextDelta
from xlaserve.engine.output_stream import OutputStream


class Aborts(Protocol):
    def abort(self, stream: OutputStream, reason: FinishReason = "abort") -> None:
        """Ends a request in whatever phase it is; harmless when it has ended. `reason` goes to its stream."""
        ...


class Generation:
    """One request under way: iterate over it, or poll `next`, on one thread; `abort` from any.

    forks: the further answers to its prompt, each with an end of its own.
    """

    def __init__(self, stream: OutputStream, processor: OutputProcessor, engine: Aborts):
        self.forks: list[Generation] = []
        self._stream = stream
        self._processor = processor
        self._engine = engine
        self._end_time: float | None = None

    @property
    def request(self) -> Request:
        return self._stream.request

    @property
    def request_id(self) -> str:
        return self._stream.request.request_id

    def next(self, timeout: float | None = None) -> TextDelta | None:
        """The next piece; None when there is none within `timeout` seconds, or after the last one."""
        if self._end_time is not None:
            return None
        output = self._stream.get(timeout)
        if output is None:
            return None
        try:
            delta = self._processor.push(output)
        except BaseException:
            self.abort()
            raise
        if delta.finish_reason is not None:
            self._end_time = time.monotonic()
            if output.finish_reason is None:  # a stop string: the engine does not know of it
                self._engine.abort(self._stream, delta.finish_reason)
            measured = Measured(self._stream.request.num_cached_tokens, self.timings)
            return replace(delta, measured=measured)
        return delta

    def take(self) -> EngineOutput | None:
        """As `next`, without waiting and without text: for who has that made elsewhere."""
        output = self._stream.get(0) if self._end_time is None else None
        if output is not None and output.finish_reason is not None:
            self._end_time = time.monotonic()
        return output

    def __iter__(self) -> Iterator[TextDelta]:
        """Up to the piece that has a finish_reason. Leaving earlier aborts the request."""
        try:
            while (delta := self.next()) is not None:
                yield delta
        finally:
            self.abort()

    def abort(self, reason: FinishReason = "abort") -> None:
        """Frees what the request holds, in whatever phase it is; harmless when it has ended."""
        if self._end_time is None:
            self._engine.abort(self._stream, reason)

    @property
    def timings(self) -> dict[str, float | None]:
        """Seconds from arrival: `queue` to the first step, `ttft` to the first token, `total` to the end or to now."""
        request = self._stream.request
        times = {
            "queue": request.first_scheduled_time,
            "ttft": request.first_token_time,
            "total": self._end_time or time.monotonic(),
        }
        return {name: None if when is None else when - request.arrival_time for name, when in times.items()}
