"""Answers that may be asked for again, in memory: the least recently used are forgotten when room is needed."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from xlaserve.config import ResponsesSection
from xlaserve.errors import InvalidRequest
from xlaserve.server.responses_api.items import Item

_FORGOTTEN = "there was none, it was not to be stored, or others have taken its room (server.responses)"


@dataclass(frozen=True)
class StoredResponse:
    """JSON, for its size is what it is: `response` as it was answered, `input` a list of all items that led to it."""

    response: bytes
    input: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.input)

    @property
    def items(self) -> list[Item]:
        return json.loads(self.input)


class ResponseStore:
    """May be used from any thread. Every tenant sees its own answers only."""

    def __init__(self, limits: ResponsesSection | None = None):
        self._limits = limits or ResponsesSection()
        self._lock = threading.Lock()  # guards what follows
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()  # by tenant and id
        self._size = 0

    def put(self, response_id: str, response: bytes, input_items: Sequence[Item], *, tenant: str) -> None:
        """One that alone is larger than the limit is forgotten at once."""
        new = StoredResponse(response, json.dumps(input_items, ensure_ascii=False).encode())
        with self._lock:
            self._stored[tenant, response_id] = new
            self._size += new.size
            while len(self._stored) > self._limits.max_number or self._size > self._limits.max_bytes:
                self._size -= self._stored.popitem(last=False)[1].size

    def get(self, response_id: str, *, tenant: str) -> StoredResponse:
        """Raises InvalidRequest (404)."""
        with self._lock:
            found = self._stored.get((tenant, response_id))
            if found is None:
                raise _missing(response_id)
            self._stored.move_to_end((tenant, response_id))
            return found

    def conversation(self, response_id: str, *, tenant: str) -> list[Item]:
        """What led to an answer, and the answer. Raises InvalidRequest naming previous_response_id."""
        try:
            found = self.get(response_id, tenant=tenant)
        except InvalidRequest:
            message = f"Previous response with id {response_id[:80]!r} not found: {_FORGOTTEN}."
            param = "previous_response_id"
            raise InvalidRequest(message, param=param, code="previous_response_not_found") from None
        return found.items + json.loads(found.response)["output"]

    def delete(self, response_id: str, *, tenant: str) -> None:
        """Raises InvalidRequest (404)."""
        with self._lock:
            found = self._stored.pop((tenant, response_id), None)
            if found is None:
                raise _missing(response_id)
            self._size -= found.size


def _missing(response_id: str) -> InvalidRequest:
    message = f"Response with id {response_id[:80]!r} not found: {_FORGOTTEN}."
    return InvalidRequest(message, param="response_id", status=404)
