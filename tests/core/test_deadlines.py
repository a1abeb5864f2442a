"""Deadlines against a plain list, and that those who ended otherwise are not kept."""

from hypothesis import given
from hypothesis import strategies as st

from xlaserve.core.deadlines import Deadlines
from xlaserve.core.request import Request, RequestStatus
from xlaserve.sampling_params import SamplingParams


def make_request(deadline: float | None) -> Request:
    return Request("", [1], SamplingParams(), 9, stop_ids=frozenset(), seed=0, deadline=deadline)


@given(st.lists(st.tuples(st.sampled_from(["add", "finish", "look"]), st.integers(0, 300)), max_size=400))
def test_each_expires_once_in_order_unless_it_is_finished(history):
    deadlines, pending = Deadlines(), []
    for action, number in history:
        if action == "add":
            pending.append(make_request(number))
            deadlines.add(pending[-1])
        elif action == "finish" and pending:
            pending.pop(number % len(pending)).status = RequestStatus.FINISHED
        elif action == "look":
            due = sorted((r for r in pending if r.deadline <= number), key=lambda request: request.deadline)
            assert deadlines.pop_expired(number) == due
            pending = [request for request in pending if request not in due]


def test_memory_follows_the_unfinished_ones():
    deadlines = Deadlines()
    for number in range(10_000):
        request = make_request(1e9 + number)
        deadlines.add(request)
        if number % 100:
            request.status = RequestStatus.FINISHED
    assert len(deadlines) < 400
    assert len(deadlines.pop_expired(2e9)) == 100


def test_no_deadline_never_expires():
    deadlines = Deadlines()
    deadlines.add(make_request(None))
    assert len(deadlines) == 0
    assert deadlines.pop_expired(1e300) == []
