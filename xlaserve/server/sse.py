"""Server-sent events: the body of a streamed answer."""

import logging
from collections.abc import Iterator

from xlaserve.engine.generations import Generations
from xlaserve.errors import XlaserveError
from xlaserve.server.errors import ClientGone, error_reply
from xlaserve.server.render import ChatRenderer, CompletionRenderer

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
DONE = b"data: [DONE]\n\n"

_logger = logging.getLogger(__name__)


def event(data: bytes, name: str | None = None) -> bytes:
    """name: on a line of its own, where events have different ones."""
    kind = b"" if name is None else f"event: {name}\n".encode()
    return kind + b"data: " + data + b"\n\n"


def stream(
    generations: Generations, renderer: CompletionRenderer | ChatRenderer, *, include_usage: bool
) -> Iterator[bytes]:
    """Yields the events of one delta together. An error becomes an event, for the status line is long gone."""
    try:
        for index, delta in generations:
            events = b"".join(event(chunk.json_bytes()) for chunk in renderer.chunks(index, delta))
            if events:
                yield events
        if include_usage:
            yield event(renderer.usage_chunk().json_bytes())
    except ClientGone:
        return
    except Exception as error:
        if not isinstance(error, XlaserveError):
            _logger.exception("Error in the stream %s", renderer.id)
        yield event(error_reply(error).body)
    yield DONE
