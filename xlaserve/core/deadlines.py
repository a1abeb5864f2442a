"""Which requests have run out of time. No clock: the caller passes in what it reads."""

import heapq

from xlaserve.core.request import Request

_SWEEP_FROM = 64  # entries


class Deadlines:
    """A heap of those that have a deadline. Memory follows how many of them are unfinished."""

    def __init__(self):
        self._heap: list[tuple[float, int, Request]] = []
        self._count = 0  # ever added: a tie-break, for requests have no order
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Does nothing where there is no deadline. Amortised O(log n): now and then the finished ones are swept out."""
        if request.deadline is None:
            return
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[-1].is_finished]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))
        self._count += 1
        heapq.heappush(self._heap, (request.deadline, self._count, request))

    def pop_expired(self, now: float) -> list[Request]:
        """Takes out the unfinished ones whose deadline is `now` or earlier, earliest first."""
        expired = []
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[-1]
            if not request.is_finished:
                expired.append(request)
        return expired
