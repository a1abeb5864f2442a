"""Who gets drafts, how many, and who waits for them: by what proposals were right and what steps take."""

from collections.abc import Sequence

import pytest

from xlaserve.core.request import Request
from xlaserve.core.speculation import Plan, Speculation
from xlaserve.core.step_costs import FORGOTTEN, KNOWN, StepCosts
from xlaserve.sampling_params import SamplingParams

SIZES = (4, 8, 16, 32)


class Says:
    """Proposes what it is told for each request."""

    def __init__(self, **proposals: Sequence[int]):
        self.proposals = proposals

    def propose(self, request: Request) -> list[int]:
        return list(self.proposals.get(request.request_id, ()))


def request(name: str = "a", *, num_in_flight: int = 0, output: Sequence[int] = (9,), room: int = 100) -> Request:
    made = Request(name, [1, 2, 3], SamplingParams(), 3 + len(output) + room, stop_ids=frozenset(), seed=0)
    made.token_ids += output
    made.num_in_flight = num_in_flight
    return made


def known_costs(**seconds: float) -> StepCosts:
    """By size: s4=1.0"""
    costs = StepCosts(SIZES)
    for name, value in seconds.items():
        for _ in range(1 + KNOWN):
            costs.observe(int(name[1:]), value)
    return costs


def make(costs: StepCosts | None = None, num_tokens: int = 7, **proposals: Sequence[int]) -> Speculation:
    return Speculation(Says(**proposals), costs or known_costs(s4=1.0, s8=1.0, s16=1.0, s32=1.0), num_tokens)


def plan(speculation: Speculation, *requests: Request, others: int = 0, room: int = 32) -> Plan:
    running = [(each, 1) for each in requests] + [(request("other"), 1)] * others
    return speculation.plan(running, room)


def always(speculation: Speculation, request: Request, right: bool, rounds: int = 60) -> None:
    """Its proposals have been right, or wrong, for so many steps."""
    token = 5 if right else 6
    for _ in range(rounds):
        plan(speculation, request)
        request.token_ids.append(token)


def test_alone_it_gets_what_the_padding_holds_or_more_if_that_pays():
    dear = make(known_costs(s4=1.0, s8=2.0), a=[5] * 8)
    alone = request(room=1000)
    assert plan(dear, alone) == Plan({alone: (5, 5, 5)}, set())
    cheap = make(known_costs(s4=1.0, s8=1.05, s16=9.0), a=[5] * 8)
    always(cheap, alone, right=True)
    assert len(plan(cheap, alone).drafts[alone]) == 7


def test_one_in_flight_is_held_until_its_token_is_known():
    speculation = make(a=[5] * 8)
    asked = request(num_in_flight=1)
    assert plan(speculation, asked) == Plan({}, {asked})
    asked.token_ids.append(5)
    asked.num_in_flight = 0
    assert plan(speculation, asked).drafts[asked] == (5,) * 7
    asked.num_in_flight, asked.num_drafts = 1, 7
    assert plan(speculation, asked) == Plan({}, {asked})


def test_where_all_get_drafts_they_wait_for_each_other():
    speculation = make(a=[5] * 8, b=[5] * 8)
    ready, flying = request("a"), request("b", num_in_flight=1)
    assert plan(speculation, ready, flying) == Plan({}, {ready, flying})
    flying.num_in_flight = 0
    assert set(plan(speculation, ready, flying).drafts) == {ready, flying}


def test_who_has_none_is_not_waited_for_and_drafts_then_have_to_make_up_for_every_second_step():
    speculation = make(a=[5] * 8)
    asked = request(room=1000)
    assert plan(speculation, asked, others=1) == Plan({}, set()), (
        "half of seven right in a row: not even one more token"
    )
    always(speculation, asked, right=True)
    assert plan(speculation, asked, others=1).drafts.keys() == {asked}
    asked.num_in_flight = 1
    assert plan(speculation, asked, others=1) == Plan({}, {asked})


def test_what_was_wrong_gets_none_and_gets_some_again_when_it_would_have_been_right():
    """Proposals are compared with what comes whether they are drafts or not: nothing has to be tried."""
    speculation = make(a=[5] * 8)
    asked = request(room=1000)
    always(speculation, asked, right=False)
    assert plan(speculation, asked).drafts == {}
    always(speculation, asked, right=True)
    assert plan(speculation, asked).drafts.keys() == {asked}


def test_the_likeliest_get_them_first():
    speculation = make(known_costs(s4=1.0, s8=9.0), a=[5] * 8, b=[5] * 8)
    good, bad = request("a", room=1000), request("b", room=1000)
    always(speculation, good, right=True)
    always(speculation, bad, right=False, rounds=2)
    assert {each.request_id: len(drafts) for each, drafts in plan(speculation, good, bad).drafts.items()} == {"a": 2}


@pytest.mark.parametrize(("seconds", "has_drafts"), [(1.2, True), (2.0, False)])
def test_a_larger_body_has_to_pay(seconds, has_drafts):
    speculation = make(known_costs(s4=1.0, s8=seconds), **{name: [5] * 8 for name in "abcd"})
    assert bool(plan(speculation, *map(request, "abcd")).drafts) == has_drafts


@pytest.mark.parametrize(("room", "count"), [(3, 2), (2, 1), (1, 0)])
def test_no_more_than_the_request_may_still_give(room, count):
    """One token more than drafts comes of a step."""
    speculation = make(a=[5] * 8)
    asked = request(room=room)
    assert len(plan(speculation, asked).drafts.get(asked, ())) == count


def test_no_more_than_the_step_holds():
    speculation = make(a=[5] * 8, b=[5] * 8)
    found = plan(speculation, request("a"), request("b"), room=5)
    assert sum(map(len, found.drafts.values())) == 3


def test_nobody_has_drafts_before_the_first_token_or_with_a_prompt_to_compute():
    speculation = make(a=[5] * 8)
    assert plan(speculation, request(output=())) == Plan({}, set())
    assert speculation.plan([(request(), 2)], 32) == Plan({}, set())


def test_without_proposals_nothing_waits():
    assert plan(make(), request(num_in_flight=1)) == Plan({}, set())


def test_costs_are_medians_without_the_first_step_and_unknown_ones_are_as_the_next_smaller():
    costs = StepCosts(SIZES)
    assert costs.seconds() == dict.fromkeys(SIZES, 1.0)
    for seconds in (9.0, 2.0, 90.0, 2.0):
        costs.observe(3, seconds)
    assert costs.seconds() == dict.fromkeys(SIZES, 2.0)
    for seconds in (9.0, 5.0, 5.0):
        costs.observe(9, seconds)
    assert costs.seconds()[16] == 2.0, "two steps are not enough"
    costs.observe(16, 4.0)
    assert costs.seconds() == {4: 2.0, 8: 2.0, 16: 5.0, 32: 5.0}
    for _ in range(FORGOTTEN):
        costs.observe(4, 3.0)
    assert costs.seconds() == dict.fromkeys(SIZES, 3.0), "16 was long ago"
    assert [costs.size_of(n) for n in (1, 4, 5, 33)] == [4, 4, 8, 32]
