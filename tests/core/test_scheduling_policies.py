"""Policies at work in the scheduler, simulated step by step: shares, displacement, bounded waiting. No runner."""

import random
from collections import Counter

import pytest

from tests.core.test_scheduler import make_scheduler, result_of, step
from tests.integrity import check_scheduler
from xlaserve.core.policy import MAX_DISPLACED, Fair, make_policy
from xlaserve.core.request import Request, RequestStatus
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.update import update
from xlaserve.sampling_params import SamplingParams


def add(scheduler: Scheduler, prompt_len: int, max_tokens: int = 4, num_forks: int = 0, **fields) -> Request:
    request = Request(
        fields.pop("name", "r"),
        list(range(1, prompt_len + 1)),
        SamplingParams(),
        prompt_len + max_tokens,
        stop_ids=frozenset(),
        seed=0,
        **fields,
    )
    for choice in range(1, num_forks + 1):
        request.add_fork(f"r{choice}", choice)
    scheduler.add(request)
    return request


def run_steps(scheduler: Scheduler, count: int) -> None:
    for _ in range(count):
        step(scheduler)


@pytest.mark.parametrize("num_blocks", [1 + 400, 1 + 60], ids=["ample", "scarce"])
@pytest.mark.parametrize(
    "weights", [{"heavy": 1, "light": 1}, {"heavy": 1, "light": 3}, {"heavy": 3, "light": 1}], ids=str
)
def test_each_tenant_is_served_by_its_weight_whatever_it_sends(weights, num_blocks):
    """One sends 20 times what the other does, in other lengths; both always have something waiting."""
    rng = random.Random(0)
    scheduler = make_scheduler(num_blocks=num_blocks, rows=8, budget=32, policy=Fair(weights))
    served: Counter[str] = Counter()
    waiting: Counter[str] = Counter()

    def send(tenant: str, prompt_len: int, max_tokens: int) -> None:
        add(scheduler, prompt_len, max_tokens, tenant=tenant)
        waiting[tenant] += 1

    for _ in range(2500):
        for _ in range(20 if waiting["heavy"] < 2000 else 0):
            send("heavy", rng.randint(1, 60), rng.randint(1, 20))
        if waiting["light"] < 100:
            send("light", rng.randint(1, 20), rng.randint(1, 60))
        assert min(waiting.values()) > 0
        output = scheduler.schedule()
        for request in output.admitted:
            waiting[request.tenant] -= request.num_preemptions == 0
        for row in output.rows:
            served[row.request.tenant] += row.num_tokens
        update(scheduler, output, result_of(output))
    share = served["light"] / served.total()
    expected = weights["light"] / sum(weights.values())
    assert abs(share / expected - 1) < 0.1
    assert abs((1 - share) / (1 - expected) - 1) < 0.1
    assert (scheduler.num_preemptions > 0) == (num_blocks < 100)


def test_first_come_first_served_would_not_be_fair():
    """So the test above shows what the policy does."""
    scheduler = make_scheduler(num_blocks=400, rows=8, budget=32)
    served: Counter[str] = Counter()
    for _ in range(300):
        for tenant in ["heavy"] * 20 + ["light"]:
            add(scheduler, 10, 10, tenant=tenant)
        output = scheduler.schedule()
        for row in output.rows:
            served[row.request.tenant] += row.num_tokens
        update(scheduler, output, result_of(output))
    assert served["light"] / served.total() < 0.1


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_everybody_finishes_soon_in_a_pool_that_is_too_small(name, depth):
    """A long request beside endless short ones, of any tenant and as urgent as it or less; some of them fork."""
    rng = random.Random(depth)
    scheduler = make_scheduler(
        num_blocks=1 + 16, rows=8, budget=8, policy=make_policy(name), long_prefill_token_threshold=6
    )
    born: dict[Request, int] = {}
    in_flight = []
    for now in range(1000):
        if now == 20:
            born[add(scheduler, 40, 20, tenant="a")] = now
        while len(scheduler.waiting) < 4 and now < 850:
            forks = rng.choice([0, 0, 0, 2])
            request = add(scheduler, rng.randint(1, 12), rng.randint(1, 12), forks, tenant=rng.choice("abc"))
            born |= dict.fromkeys([request, *request.forks], now)
        in_flight.append(scheduler.schedule())
        assert in_flight[-1].num_tokens <= scheduler.max_num_batched_tokens
        while len(in_flight) > depth:
            output = in_flight.pop(0)
            update(scheduler, output, result_of(output))
        check_scheduler(scheduler)
        assert all(now - born[request] < 300 for request in scheduler.requests())
        assert all(request.num_preemptions <= 6 for request in scheduler.requests())
    assert not scheduler.has_requests
    assert all(request.is_finished for request in born)
    assert (scheduler.num_preemptions > 0, scheduler.num_forks > 0) == (True, True), "meant to happen"
    assert scheduler.waiting.peek() is None
    if isinstance(scheduler.waiting, Fair):
        assert scheduler.waiting._tenants == {}, "accounts are left open"


def test_an_endless_stream_of_better_requests_displaces_a_request_a_few_times_only():
    """It would have its prompt computed again and again: there are six steps between two of them."""
    scheduler = make_scheduler(rows=1, budget=8, policy=make_policy("priority"))
    victim = add(scheduler, 40, 20, priority=1)
    better = []
    for now in range(200):
        if now % 12 == 3:
            better.append(add(scheduler, 8, 6))
        step(scheduler)
    assert victim.is_finished
    assert victim.num_preemptions == MAX_DISPLACED
    assert sum(request.is_finished for request in better) >= 10


def test_a_better_request_takes_the_row_of_the_worst():
    scheduler = make_scheduler(rows=2, policy=make_policy("priority"))
    worse, worst = add(scheduler, 3, 20, priority=5), add(scheduler, 3, 20, priority=6)
    run_steps(scheduler, 3)
    equal = add(scheduler, 3, priority=6)
    run_steps(scheduler, 3)
    assert (worst.status, equal.status) == (RequestStatus.RUNNING, RequestStatus.WAITING)
    better = add(scheduler, 3, priority=-1)
    output, _ = step(scheduler)
    assert (output.preempted, output.admitted) == ([worst], [better])
    assert {row.request for row in output.rows} == {worse, better}
    assert scheduler.waiting.peek() is worst
    run_steps(scheduler, 60)
    assert not scheduler.has_requests
    assert (len(worst.output_ids), worst.num_preemptions) == (20, 1)


def test_a_better_request_takes_as_many_blocks_as_it_needs():
    scheduler = make_scheduler(num_blocks=1 + 12, rows=4, budget=64, policy=make_policy("priority"))
    others = [add(scheduler, 12, 4, priority=priority) for priority in (1, 2, 3)]
    run_steps(scheduler, 1)
    better = add(scheduler, 20, 2)
    output, _ = step(scheduler)
    assert output.admitted == [better]
    assert output.preempted == [others[2], others[1]]
    assert others[0].status is RequestStatus.RUNNING


def test_what_was_computed_again_is_not_charged_again():
    policy = Fair()
    scheduler = make_scheduler(num_blocks=1 + 4, rows=2, budget=3, policy=policy)
    add(scheduler, 1, 15, tenant="old")
    young = add(scheduler, 7, 5, tenant="young")
    for _ in range(6):
        add(scheduler, 1, 1, tenant="young")  # keep the account open
    charged = 0.0
    while not young.is_finished:
        step(scheduler)
        charged = policy._tenants["young"].counter
    assert young.num_preemptions > 0
    assert charged == young.num_tokens - 1


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_a_running_stream_has_a_token_in_every_step_whatever_prompts_come(name):
    rng = random.Random(0)
    scheduler = make_scheduler(num_blocks=400, rows=16, budget=16, policy=make_policy(name))
    for now in range(300):
        while len(scheduler.waiting) < 2:
            add(scheduler, rng.choice([1, 5, 60]), rng.randint(1, 40), tenant=rng.choice("abc"))
        decoding = {
            request
            for request in scheduler.running
            if request.num_output_tokens and len(request.token_ids) < request.max_total_tokens
        }
        prompts = [request for request in scheduler.running if not request.num_output_tokens]
        output, _ = step(scheduler)
        scheduled = {row.request for row in output.rows}
        assert decoding <= scheduled, f"step {now}"
        assert not prompts or prompts[0] in scheduled, f"step {now}: the first prompt stands still"


def test_long_prompts_share_a_step():
    scheduler = make_scheduler(budget=16, long_prefill_token_threshold=6)
    requests = [add(scheduler, 40) for _ in range(3)]
    output, _ = step(scheduler)
    assert [(row.request, row.num_tokens) for row in output.rows] == list(zip(requests, (6, 6, 4), strict=True))
    output, _ = step(scheduler)
    assert [row.num_tokens for row in output.rows] == [6, 6, 4]


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_forks_that_find_no_row_wait_ahead_of_the_newcomers(name):
    scheduler = make_scheduler(rows=2, policy=make_policy(name))
    request = add(scheduler, 3, 5, num_forks=3, tenant="a")
    forks = list(request.forks)
    newcomer = add(scheduler, 3, 5, tenant="b")
    step(scheduler)
    assert (list(scheduler.running), list(scheduler.waiting)) == ([request, forks[0]], [*forks[1:], newcomer])
    scheduler.finish(request, "abort")
    assert None not in [fork.first_scheduled_time for fork in forks], "they began with their parent's prompt"
    run_steps(scheduler, 30)
    assert [len(each.output_ids) for each in (*forks, newcomer)] == [5, 5, 5, 5]


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_forks_end_on_their_own_before_they_begin(name):
    scheduler = make_scheduler(policy=make_policy(name))
    request = add(scheduler, 3, 5, num_forks=2)
    first, second = request.forks
    scheduler.finish(first, "abort")
    scheduler.finish(request, "abort")
    assert list(scheduler.waiting) == [second]
    scheduler.finish(second, "abort")
    assert not scheduler.has_requests
    assert scheduler.waiting.peek() is None
