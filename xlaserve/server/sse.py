"""Server-sent events: the body of a streamed answer."""

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from xlaserve.engine.generations import Generations
from xlaserve.errors import XlaserveError
from xlaserve.server.errors import ClientGone, error_reply
from xlaserve.server.events import event
from xlaserve.server.render import ChatRenderer, CompletionRenderer

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService
    from xlaserve.server.jobs import TextJob

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
DONE = b"data: [DONE]\n\n"

_logger = logging.getLogger(__name__)


class EventStream:
    """The events of one answer, either iterated over, which waits for them, or pulled by `events` when there is news.

    pieces: yields the events of what is new, none when nothing is, and does not wait; the last ones when the
    generations are over. close: called in the end. job, service: what makes them, so that another process may instead.
    """

    def __init__(
        self,
        generations: Generations,
        pieces: Iterator[bytes],
        close: Callable[[], None],
        job: "TextJob | None" = None,
        service: "GenerationService | None" = None,
    ):
        self.news = generations.news
        self.job = job
        self.service = service
        self.generations = generations
        self._pieces = pieces
        self._close = close

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return self.generations.is_over

    def events(self) -> bytes | None:
        """What is new, without waiting; None: nobody is there to read it. Never from two threads at a time."""
        return next(self._pieces, None)

    def __iter__(self) -> Iterator[bytes]:
        for events in self._pieces:
            if events:
                yield events
            else:
                self.generations.wait()

    def close(self) -> None:
        self._close()


def stream(
    generations: Generations, renderer: CompletionRenderer | ChatRenderer, *, include_usage: bool
) -> Iterator[bytes]:
    """As `pieces` of an EventStream. An error becomes an event, for the status line is long gone."""
    events: list[bytes] = []
    try:
        while not generations.is_over:
            for index, delta in generations.new():
                events.append(renderer.events(index, delta))
            if not generations.is_over:
                yield b"".join(events)
                events.clear()
        if include_usage:
            events.append(event(renderer.usage_chunk().json_bytes()))
    except ClientGone:
        return
    except Exception as error:
        if not isinstance(error, XlaserveError):
            _logger.exception("Error in the stream %s", renderer.id)
        events.append(event(error_reply(error).body))
        generations.abort()
    yield b"".join((*events, DONE))
