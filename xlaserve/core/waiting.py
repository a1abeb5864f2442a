"""The waiting queue as the scheduler sees it, and the sorted queue that policies are made of. No clock, no blocks.

Whatever the policy, running requests have a rank too, and what makes progress certain is the same in all of them: the
scheduler serves running requests best rank first, takes blocks from the worst, and lets whoever has lost its blocks
wait in front of the newcomers of its class.
"""

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Reversible
from typing import ClassVar

from xlaserve.core.request import Request

Order = tuple[int, int]  # a number in order of arrival, and which of several answers to one prompt: unique
Rank = tuple[float, Order]  # lower is better


class Policy(ABC):
    """The waiting queue. Every operation is O(log n) or better; memory follows what waits or runs."""

    takes_priority: ClassVar[bool] = False  # whether a request's `priority` has an effect
    charges: ClassVar[bool] = False  # whether it keeps accounts: else `charge` does nothing, and need not be called

    def __init__(self):
        self.num_tokens = 0  # prompt tokens of the requests that wait
        self._numbers = itertools.count()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """All that wait; in the order in which they would be taken, as far as that is known already."""

    @abstractmethod
    def __contains__(self, request: Request) -> bool: ...

    def add(self, request: Request) -> None:
        """Queues a newcomer."""
        request.order = next(self._numbers), 0
        self.num_tokens += request.num_prompt_tokens
        self._add(request)

    def adopt(self, fork: Request, parent: Request) -> None:
        """Numbers a fork that begins beside or after `parent`, whose turn was its own: it runs, or is requeued."""
        fork.order = parent.order[0], fork.choice_index

    @abstractmethod
    def peek(self) -> Request | None:
        """Whose turn it is; None when nobody waits."""

    def pop(self) -> Request:
        """Takes out the one that `peek` names."""
        request = self._pop()
        self.num_tokens -= request.num_prompt_tokens
        return request

    def requeue(self, request: Request) -> None:
        """Queues one that has been taken out and has lost its blocks since: ahead of the newcomers of its class."""
        self.num_tokens += request.num_prompt_tokens
        self._requeue(request)

    def remove(self, request: Request) -> None:
        """Forgets a request that ends, whether it waits or runs. It does not come back."""
        if self._remove(request):
            self.num_tokens -= request.num_prompt_tokens

    def charge(self, request: Request, num_tokens: int) -> None:
        """Tells that `num_tokens` tokens of the request, of prompt or output, are being computed.

        Its num_computed_tokens counts them already.
        """
        return  # most policies keep no accounts

    def in_order(self, running: Iterable[Request]) -> list[Request]:
        """Running requests, best rank first. `running` is in the order in which they were taken out."""
        return list(running)

    def victim(self, running: Reversible[Request]) -> Request:
        """Who loses its blocks first: the last one of `in_order`."""
        return next(reversed(running))

    def displaces(self, request: Request, running: Request) -> bool:
        """Whether the running request is to give way when `request`, whose turn it is, has no place."""
        return False

    @abstractmethod
    def _add(self, request: Request) -> None: ...

    @abstractmethod
    def _pop(self) -> Request: ...

    @abstractmethod
    def _requeue(self, request: Request) -> None: ...

    @abstractmethod
    def _remove(self, request: Request) -> bool:
        """Returns whether it was waiting."""


class RankQueue:
    """Requests, lowest rank first. A request that was removed (not popped) must not come back."""

    def __init__(self):
        self._heap: list[tuple[Rank, Request]] = []  # those removed stay until they are on top, or are many
        self._members: set[Request] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        return request in self._members

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap) if request in self._members)

    def push(self, rank: Rank, request: Request) -> None:
        heapq.heappush(self._heap, (rank, request))
        self._members.add(request)

    def peek(self) -> Request | None:
        while self._heap and self._heap[0][1] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        request = self.peek()
        assert request is not None
        heapq.heappop(self._heap)
        self._members.remove(request)
        return request

    def remove(self, request: Request) -> bool:
        if request not in self._members:
            return False
        self._members.remove(request)
        if len(self._heap) > 2 * len(self._members) + 8:
            self._heap = [entry for entry in self._heap if entry[1] in self._members]
            heapq.heapify(self._heap)
        return True
