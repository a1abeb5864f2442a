"""The waiting queues against slow plain ones: whose turn it is after any history."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlaserve.core.policy import FCFS, MAX_DISPLACED, Fair, Priority, make_policy
from xlaserve.core.request import Request
from xlaserve.core.waiting import Policy
from xlaserve.sampling_params import SamplingParams

WEIGHTS = {"a": 1.0, "b": 4.0, "c": 0.5}  # powers of two: sums of floats stay exact; "d" has none, which is 1


def make_request(name: str = "", *, tokens: int = 1, **fields) -> Request:
    return Request(name, [1] * tokens, SamplingParams(), 100, stop_ids=frozenset(), seed=0, **fields)


def charge(policy: Policy, request: Request, num_tokens: int) -> None:
    request.num_computed_tokens += num_tokens
    policy.charge(request, num_tokens)


class Slow:
    """The oracle: plain lists, everything looked up anew. Requests are listed in order of arrival."""

    def __init__(self):
        self.newcomers: list[Request] = []
        self.preempted: list[Request] = []
        self.taken: list[Request] = []  # all that ever were, in order; not once more after a preemption
        self.running: list[Request] = []
        self.arrived: list[Request] = []

    def add(self, request: Request) -> None:
        self.newcomers.append(request)
        self.arrived.append(request)

    def next(self) -> Request | None:
        return min(self.newcomers + self.preempted, key=self.rank, default=None)

    def rank(self, request: Request):
        return self.arrived.index(request)

    def take(self, request: Request) -> None:
        (self.newcomers if request in self.newcomers else self.preempted).remove(request)
        self.running.append(request)
        if request not in self.taken:
            self.taken.append(request)

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.preempted.append(request)

    def end(self, request: Request) -> None:
        next(group for group in (self.newcomers, self.preempted, self.running) if request in group).remove(request)

    def charge(self, request: Request, num_tokens: int) -> None:
        pass


class SlowPriority(Slow):
    def rank(self, request: Request):
        return request.priority, self.arrived.index(request)


class SlowFair(Slow):
    """Keeps counters for ever, except that debts lapse when nobody waits."""

    def __init__(self):
        super().__init__()
        self.counters: dict[str, Fraction] = {}

    def add(self, request: Request) -> None:
        waiting = {other.tenant for other in self.newcomers}
        if not waiting:
            held = {other.tenant for other in self.running + self.preempted}
            self.counters = {tenant: counter for tenant, counter in self.counters.items() if tenant in held}
        if request.tenant not in waiting:
            ahead = waiting or set(self.counters) - {request.tenant}
            least = min((self.counters[tenant] for tenant in ahead), default=Fraction(0))
            self.counters[request.tenant] = max(self.counters.get(request.tenant, least), least)
        super().add(request)

    def next(self) -> Request | None:
        if self.preempted:
            return min(self.preempted, key=self.taken.index)
        heads = {request.tenant: request for request in reversed(self.newcomers)}
        return min(heads.values(), key=lambda head: (self.counters[head.tenant], self.rank(head)), default=None)

    def charge(self, request: Request, num_tokens: int) -> None:
        self.counters[request.tenant] += Fraction(num_tokens) / Fraction(WEIGHTS.get(request.tenant, 1.0))


HISTORY = st.lists(
    st.tuples(st.sampled_from(["add", "add", "take", "take", "preempt", "end", "abort", "charge"]), st.integers(0, 31)),
    max_size=120,
)


@pytest.mark.parametrize(
    ("make_fast", "make_slow"), [(FCFS, Slow), (Priority, SlowPriority), (lambda: Fair(WEIGHTS), SlowFair)]
)
@settings(max_examples=300, deadline=None)
@given(history=HISTORY)
def test_whose_turn_it_is_equals_the_plain_model(make_fast, make_slow, history):
    fast, slow = make_fast(), make_slow()
    for step, (action, number) in enumerate(history):
        act(fast, slow, action, number, step)
        waiting = slow.newcomers + slow.preempted
        assert fast.peek() is slow.next()
        assert len(fast) == len(waiting)
        assert set(fast) == set(waiting)
        assert fast.num_tokens == sum(request.num_prompt_tokens for request in waiting)
    while fast:
        assert fast.peek() is slow.next()
        act(fast, slow, "take", 0, 0)


def act(fast: Policy, slow: Slow, action: str, number: int, step: int) -> None:
    group = slow.newcomers + slow.preempted if action == "abort" else slow.running
    chosen = group[number % len(group)] if group else None
    if action == "add":
        request = make_request(str(step), tokens=1 + number, tenant="abcd"[number % 4], priority=number % 3)
        fast.add(request)
        slow.add(request)
    elif action == "take" and fast:
        request = fast.pop()
        slow.take(request)
    elif action == "preempt" and chosen:
        fast.requeue(chosen)
        slow.preempt(chosen)
    elif action in ("end", "abort") and chosen:
        fast.remove(chosen)
        slow.end(chosen)
    elif action == "charge" and chosen:
        charge(fast, chosen, number)
        slow.charge(chosen, number)


def take_all(policy: Policy) -> list[Request]:
    return [policy.pop() for _ in range(len(policy))]


@pytest.mark.parametrize("name", ["fcfs", "fair"])
def test_only_the_priority_policy_heeds_priorities_and_displaces(name):
    policy = make_policy(name)
    first, second = make_request(priority=9), make_request(priority=-9)
    policy.add(first)
    policy.add(second)
    assert not policy.takes_priority
    assert not policy.displaces(second, first)
    assert take_all(policy) == [first, second]
    assert policy.victim([first, second]) is second


def test_priority_ranks_running_requests_and_displaces_only_strictly_worse_ones():
    policy = make_policy("priority")
    worse, better, equal = (make_request(priority=priority) for priority in (5, 1, 5))
    for request in (worse, better, equal):
        policy.add(request)
    assert policy.in_order([worse, better, equal]) == [better, worse, equal]
    assert policy.victim([worse, better, equal]) is equal
    assert policy.displaces(better, worse)
    assert not policy.displaces(equal, worse)
    worse.num_preemptions = MAX_DISPLACED
    assert not policy.displaces(better, worse)
    assert policy.in_order([better, equal, worse]) == [worse, better, equal]


def test_a_tenant_that_comes_back_has_saved_up_nothing():
    policy = Fair()
    policy.add(make_request(tenant="busy"))
    running = policy.pop()
    policy.add(make_request(tenant="busy"))
    charge(policy, running, 1000)
    newcomers = [make_request(tenant="new") for _ in range(2)]
    policy.add(newcomers[0])
    policy.add(newcomers[1])
    assert policy.pop().tenant == "busy", "lifted to the same counter, the one that came first is next"
    assert policy.pop() is newcomers[0]
    policy.add(make_request(tenant="busy"))
    charge(policy, newcomers[0], 1)
    assert policy.pop().tenant == "busy", "1000 tokens served are no longer held against it"


def test_leaving_does_not_clear_a_debt_while_others_wait():
    policy = Fair()
    policy.add(make_request(tenant="greedy"))
    greedy = policy.pop()
    for _ in range(3):
        policy.add(make_request(tenant="patient"))
    charge(policy, greedy, 50)
    policy.remove(greedy)
    policy.add(make_request(tenant="greedy"))
    assert [request.tenant for request in take_all(policy)] == ["patient"] * 3 + ["greedy"]


def test_accounts_are_closed_when_their_tenants_have_left_and_owe_nothing():
    policy = Fair()
    for number in range(1000):
        policy.add(make_request(tenant="stays"))
        policy.add(make_request(tenant=f"passes {number}"))
        for request in (policy.pop(), policy.pop()):
            policy.add(make_request(tenant="stays"))
            charge(policy, request, 10)
            policy.remove(request)
        for request in list(policy)[1:]:
            policy.remove(request)
    assert len(policy._tenants) <= 4
    assert len(policy._heap) <= 4


def test_removed_requests_leave_no_trace_behind_one_that_stays():
    policy = Priority()
    policy.add(make_request(priority=-1))
    for number in range(1000):
        request = make_request(priority=number)
        policy.add(request)
        policy.remove(request)
    assert len(policy) == 1
    assert len(policy._queue._heap) < 20


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_ten_thousand_requests_come_leave_and_return(name):
    policy = make_policy(name)
    requests = [make_request(tenant=str(number), priority=-number) for number in range(10_000)]
    for request in requests:
        policy.add(request)
    for request in requests[5000:]:
        policy.remove(request)
    taken = [policy.pop() for _ in range(2500)]
    for request in taken:
        charge(policy, request, 100)
        policy.requeue(request)
    assert len(take_all(policy)) == 5000
