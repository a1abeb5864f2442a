"""Rows for requests that continue others, a search's steps: between two of them none is there, but more will come."""

from collections.abc import Iterator, Mapping

from xlaserve.core.request import Request


class KeptRows:
    """By the first request of each search: the most rows that its steps need at a time."""

    def __init__(self):
        self._rows: dict[Request, int] = {}

    def __iter__(self) -> Iterator[Request]:
        """The first requests, finished perhaps, of searches that have begun and are not over."""
        return iter(self._rows)

    def open(self, first: Request) -> None:
        """Harmless for a request that keeps no rows."""
        if first.keeps_rows:
            self._rows[first] = first.keeps_rows

    def close(self, first: Request) -> None:
        """No request will continue this one any more. Harmless when none ever could."""
        self._rows.pop(first, None)

    def leave_room(self, newcomer: Request, num_free_rows: int, running: Mapping[Request, None]) -> bool:
        """Whether there is a row for the newcomer beside them.

        They do not keep out each other's steps, nor anybody when nothing runs: the device does not stand idle for that.
        """
        if not self._rows or newcomer.continues is not None or not running:
            return True
        num_begun = sum(request.continues is not None or request in self._rows for request in running)
        return num_free_rows > sum(self._rows.values()) - num_begun
