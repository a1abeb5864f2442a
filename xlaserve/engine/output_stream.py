"""What the engine says of one request, on its way to who reads it. Knows no jax."""

import queue

from xlaserve.core.outputs import EngineOutput
from xlaserve.core.request import Request
from xlaserve.engine.news import News


class OutputStream:
    """One request's outputs, in order; the last one has a finish_reason. Written by the engine, read by one thread.

    forks: those of the request's forks. places: of the loop's max_requests, given back at its end.
    """

    def __init__(self, request: Request, news: News | None = None):
        self.request = request
        self.forks = tuple(OutputStream(fork, news) for fork in request.forks)
        self.places = 0
        self._news = news
        self._outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()

    def put(self, output: EngineOutput) -> None:
        self._outputs.put(output)
        if self._news is not None and (output.finish_reason or not self._news.of_ends):
            self._news.set()

    def get(self, timeout: float | None = None) -> EngineOutput | None:
        """What there is, as one output; None when there is none within `timeout` seconds. A timeout of None waits."""
        try:
            output = self._outputs.get(timeout=timeout)
        except queue.Empty:
            return None
        while not self._outputs.empty():  # a reader that is late has less to do for each
            output = output.with_next(self._outputs.get())
        return output
