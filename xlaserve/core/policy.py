"""Who is served next: first come first served, by priority, or fairly between tenants. No clock, no blocks."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from xlaserve.config import PolicyName
from xlaserve.core.request import Request
from xlaserve.core.waiting import Order, Policy, Rank, RankQueue

MAX_DISPLACED = 3  # times that a request loses its blocks under `Priority` before it keeps them


class FCFS(Policy):
    """First come, first served: nobody overtakes anybody."""

    def __init__(self):
        super().__init__()
        self._queue = RankQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, request: Request) -> bool:
        return request in self._queue

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def peek(self) -> Request | None:
        return self._queue.peek()

    def _place(self, request: Request) -> Rank:
        return 0, request.order

    def _add(self, request: Request) -> None:
        self._queue.push(self._place(request), request)

    def _requeue(self, request: Request) -> None:
        self._queue.push(self._place(request), request)  # it came before all that wait in its class, and still does

    def _pop(self) -> Request:
        return self._queue.pop()

    def _remove(self, request: Request) -> bool:
        return self._queue.remove(request)


class Priority(FCFS):
    """The lowest `priority` first, however long the others wait; first come, first served among equals.

    A running request gives way to a strictly better one. After MAX_DISPLACED such losses it runs to its end, ahead of
    all others: a stream of better ones would else have it computed anew for ever.
    """

    takes_priority = True

    def _place(self, request: Request) -> Rank:
        return request.priority, request.order

    def in_order(self, running: Iterable[Request]) -> list[Request]:
        return sorted(running, key=_running_rank)

    def victim(self, running: Iterable[Request]) -> Request:
        return max(running, key=_running_rank)

    def displaces(self, request: Request, running: Request) -> bool:
        return request.priority < _running_rank(running)[0]


def _running_rank(request: Request) -> Rank:
    if request.num_preemptions >= MAX_DISPLACED:
        return float("-inf"), request.order
    return request.priority, request.order


class _Tenant:
    """`counter`: tokens served, over the weight; lifted when a tenant comes back, so that idling earns nothing."""

    __slots__ = ("counter", "is_listed", "num_requests", "waiting")

    def __init__(self):
        self.counter = 0.0
        self.waiting: OrderedDict[Request, None] = OrderedDict()  # newcomers, in order of arrival
        self.num_requests = 0  # waiting or running
        self.is_listed = False  # has its entry in the heap


class Fair(Policy):
    """The tenant that has been served least, by its weight, is next; its own requests in order of arrival.

    The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024): tokens of prompt
    and output count alike, when they are computed; a tenant that comes back is lifted to the least counter of those
    that wait. A request that lost its blocks has had its turn, and goes before all newcomers: so the guarantees of
    first come, first served hold in the order in which requests were taken out.

    weights: above 0, by tenant; others have 1.
    """

    charges = True

    def __init__(self, weights: Mapping[str, float] | None = None):
        super().__init__()
        self._weights = dict(weights or {})
        self._preempted = RankQueue()
        self._num_newcomers = 0
        self._tenants: dict[str, _Tenant] = {}
        # (counter, order of its first request, name): one entry per tenant that waits, or is idle and still in debt.
        # Both numbers only rise, so that an entry which is out of date is too low, and is mended when it is on top.
        self._heap: list[tuple[float, Order, str]] = []

    def __len__(self) -> int:
        return len(self._preempted) + self._num_newcomers

    def __contains__(self, request: Request) -> bool:
        tenant = self._tenants.get(request.tenant)
        return request in self._preempted or (tenant is not None and request in tenant.waiting)

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        newcomers = (request for tenant in self._tenants.values() for request in tenant.waiting)
        yield from sorted(newcomers, key=lambda request: request.order)

    def adopt(self, fork: Request, parent: Request) -> None:
        super().adopt(fork, parent)
        tenant = self._tenants.get(fork.tenant)
        if tenant is None:  # forgotten: of its requests one has ended before the next that continues it came
            floor = self._floor(fork.tenant)
            tenant = self._tenants[fork.tenant] = _Tenant()
            tenant.counter = floor
        tenant.num_requests += 1

    def peek(self) -> Request | None:
        if self._preempted:
            return self._preempted.peek()
        name = self._least_served()
        return None if name is None else next(iter(self._tenants[name].waiting))

    def charge(self, request: Request, num_tokens: int) -> None:
        """What is computed again after a preemption is free: losing its blocks is nothing that a tenant asks for."""
        num_tokens = min(num_tokens, request.num_computed_tokens - request.num_served_tokens)
        if num_tokens > 0:
            request.num_served_tokens = request.num_computed_tokens
            self._tenants[request.tenant].counter += num_tokens / self._weights.get(request.tenant, 1.0)

    def _add(self, request: Request) -> None:
        floor = self._floor(request.tenant)
        tenant = self._tenants.setdefault(request.tenant, _Tenant())
        if not tenant.waiting:
            tenant.counter = max(tenant.counter, floor)
        tenant.waiting[request] = None
        tenant.num_requests += 1
        self._num_newcomers += 1
        self._list(request.tenant, tenant)

    def _pop(self) -> Request:
        request = self.peek()
        assert request is not None
        if self._preempted:
            return self._preempted.pop()
        del self._tenants[request.tenant].waiting[request]
        self._num_newcomers -= 1
        request.order = next(self._numbers), 0  # its rank from now on
        return request

    def _requeue(self, request: Request) -> None:
        self._preempted.push((0, request.order), request)

    def _remove(self, request: Request) -> bool:
        tenant = self._tenants[request.tenant]
        tenant.num_requests -= 1
        is_newcomer = request in tenant.waiting
        if is_newcomer:
            del tenant.waiting[request]
            self._num_newcomers -= 1
        if not tenant.num_requests:
            self._list(request.tenant, tenant)  # to be forgotten once its debt is paid
            self._least_served()
        return self._preempted.remove(request) or is_newcomer

    def _floor(self, newcomer: str) -> float:
        """The least counter of those that wait; when nobody does, of those that run."""
        least = self._least_served()
        if least is not None:
            return self._tenants[least].counter
        others = (tenant.counter for name, tenant in self._tenants.items() if name != newcomer)
        return min(others, default=0.0)

    def _list(self, name: str, tenant: _Tenant) -> None:
        if not tenant.is_listed:
            tenant.is_listed = True
            heapq.heappush(self._heap, (*_key(tenant), name))

    def _least_served(self) -> str | None:
        """The tenant whose newcomer is next. Forgets those who are idle and owe no more than the least served one."""
        while self._heap:
            counter, order, name = self._heap[0]
            tenant = self._tenants[name]
            if tenant.waiting or (not tenant.num_requests and counter < tenant.counter):
                key = _key(tenant)
                if tenant.waiting and (counter, order) == key:
                    return name
                heapq.heapreplace(self._heap, (*key, name))
            else:  # only runs, or is idle and owes nothing to those that wait
                heapq.heappop(self._heap)
                tenant.is_listed = False
                if not tenant.num_requests:
                    del self._tenants[name]
        return None


def _key(tenant: _Tenant) -> tuple[float, Order]:
    return tenant.counter, next(iter(tenant.waiting)).order if tenant.waiting else (-1, 0)


def make_policy(name: PolicyName, weights: Mapping[str, float] | None = None) -> Policy:
    """`weights` by tenant, for "fair"."""
    return {"fcfs": FCFS, "priority": Priority, "fair": lambda: Fair(weights)}[name]()
