"""The scheduler alone, driven step by step: what it orders, and that everybody finishes. No runner, no threads."""

import random

import numpy as np
import pytest

from tests.integrity import check_scheduler
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.request import Request, RequestStatus
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.update import update
from xlaserve.runner.commands import SampleResult
from xlaserve.sampling_params import SamplingParams

EOS, STOP_ID = 99, 98


def make_scheduler(
    *, num_blocks=100, block_size=4, rows=4, budget=16, groups=1, prefix_caching=False, **options
) -> Scheduler:
    manager = BlockManager(
        [GroupSpec(num_blocks)] * groups, block_size, max_step_tokens=budget, prefix_caching=prefix_caching
    )
    return Scheduler(manager, max_num_seqs=rows, max_num_batched_tokens=budget, **options)


def add(scheduler: Scheduler, prompt_len: int, max_tokens: int = 4, name: str = "r", **params) -> Request:
    request = Request(
        request_id=name,
        prompt_ids=list(range(1, prompt_len + 1)),
        params=SamplingParams(**params),
        max_total_tokens=min(prompt_len + max_tokens, scheduler.block_manager.capacity),
        stop_ids=frozenset({EOS, STOP_ID}),
        eos_ids=frozenset({EOS}),
        seed=0,
    )
    scheduler.add(request)
    return request


def result_of(output, token=7, ok=True):
    n = len(output.samples)
    return SampleResult(
        tokens=np.full(n, token, np.int32),
        ok=np.full(n, ok, bool),
        logprobs=np.full(n, -0.5, np.float32),
        top_ids=np.tile(np.arange(5, dtype=np.int32), (n, 1)),
        top_logprobs=np.tile(-np.arange(1, 6, dtype=np.float32), (n, 1)),
    )


def step(scheduler: Scheduler, token=7, ok=True):
    """One synchronous step; returns (scheduler output, engine outputs)."""
    output = scheduler.schedule()
    outputs = update(scheduler, output, result_of(output, token, ok))
    check_scheduler(scheduler)
    return output, outputs


def spans(output) -> list[tuple[int, int, int]]:
    return [(scheduled.row, scheduled.start, scheduled.num_tokens) for scheduled in output.rows]


def test_prompt_is_computed_in_chunks_and_only_the_last_one_samples():
    scheduler = make_scheduler(budget=4)
    request = add(scheduler, prompt_len=10)
    seen = [scheduler.schedule() for _ in range(3)]
    assert [spans(output) for output in seen] == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2)]]
    assert [output.rows[0].token_ids for output in seen] == [(1, 2, 3, 4), (5, 6, 7, 8), (9, 10)]
    assert [output.rows[0].samples for output in seen] == [False, False, True]
    assert [len(output.admitted) for output in seen] == [1, 0, 0]
    assert [output.table_deltas for output in seen] == [[], [(0, 0, 1, 2)], [(0, 0, 2, 3)]]
    assert request.block_tables == [[1, 2, 3]]


def test_token_in_flight_is_scheduled_without_its_id_and_needs_no_waiting():
    scheduler = make_scheduler()
    request = add(scheduler, prompt_len=3)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert second.rows[0].token_ids is None
    assert spans(second) == [(0, 3, 1)]
    assert request.num_in_flight == 2
    assert [o.token_ids for o in update(scheduler, first, result_of(first, 7))] == [(7,)]
    assert [o.token_ids for o in update(scheduler, second, result_of(second, 8))] == [(8,)]
    assert request.output_ids == [7, 8]


def test_known_token_is_sent_along():
    scheduler = make_scheduler()
    add(scheduler, prompt_len=3)
    step(scheduler, token=55)
    output, _ = step(scheduler)
    assert output.rows[0].token_ids == (55,)


def test_running_rows_come_first_then_waiting_ones_share_what_is_left():
    scheduler = make_scheduler(budget=8)
    add(scheduler, prompt_len=3)
    step(scheduler)
    add(scheduler, prompt_len=5)
    add(scheduler, prompt_len=9)
    output, _ = step(scheduler)
    assert spans(output) == [(0, 3, 1), (1, 0, 5), (2, 0, 2)]
    assert output.num_tokens == 8


def test_rows_ascend_whatever_the_order_of_arrival():
    scheduler = make_scheduler(rows=3)
    first, second = add(scheduler, 2, max_tokens=1), add(scheduler, 2, max_tokens=9)
    step(scheduler)
    assert first.is_finished
    third = add(scheduler, 2, max_tokens=9)
    output, _ = step(scheduler)
    assert (third.row, second.row) == (0, 1)
    assert spans(output) == [(0, 0, 2), (1, 2, 1)]


def test_request_at_its_limit_waits_for_its_tokens():
    scheduler = make_scheduler()
    request = add(scheduler, prompt_len=3, max_tokens=2)
    outputs = [scheduler.schedule() for _ in range(4)]
    assert [len(output.rows) for output in outputs] == [1, 1, 0, 0]
    delivered = [o for output in outputs for o in update(scheduler, output, result_of(output))]
    assert [o.finish_reason for o in delivered] == [None, "length"]
    assert request.finish_reason == "length"


def test_late_token_of_a_finished_request_is_dropped():
    scheduler = make_scheduler()
    request = add(scheduler, prompt_len=3, max_tokens=9)
    first, second = scheduler.schedule(), scheduler.schedule()
    (output,) = update(scheduler, first, result_of(first, EOS))
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ((EOS,), "stop", None)
    assert update(scheduler, second, result_of(second)) == []
    assert request.output_ids == [EOS]
    assert not scheduler.has_requests
    check_scheduler(scheduler)


def test_stop_token_id_is_named_as_the_reason():
    scheduler = make_scheduler()
    add(scheduler, prompt_len=3, max_tokens=9)
    _, (output,) = step(scheduler, token=STOP_ID)
    assert (output.finish_reason, output.stop_reason) == ("stop", STOP_ID)


def test_non_finite_row_ends_its_request_alone():
    scheduler = make_scheduler()
    bad, good = add(scheduler, 3, name="bad"), add(scheduler, 3, name="good")
    output = scheduler.schedule()
    result = result_of(output)
    result.ok[bad.row] = False
    first, second = update(scheduler, output, result)
    assert (first.request_id, first.finish_reason, first.token_ids) == ("bad", "error", ())
    assert "not finite" in (first.error or "")
    assert (second.request_id, second.finish_reason, second.token_ids) == ("good", None, (7,))
    assert good.status is RequestStatus.RUNNING
    check_scheduler(scheduler)


@pytest.mark.parametrize(("asked", "top"), [(None, None), (0, ()), (2, ((0, -1.0), (1, -2.0)))])
def test_logprobs_as_many_as_asked_for(asked, top):
    scheduler = make_scheduler()
    add(scheduler, prompt_len=3, logprobs=asked)
    _, (output,) = step(scheduler)
    if asked is None:
        assert output.logprobs is None
    else:
        assert output.logprobs is not None
        assert (output.logprobs[0].logprob, output.logprobs[0].top) == (-0.5, top)


def test_preempts_the_youngest_and_puts_it_in_front_of_the_queue():
    scheduler = make_scheduler(num_blocks=1 + 4, rows=2, block_size=4)
    old, young = add(scheduler, 4, max_tokens=8), add(scheduler, 6, max_tokens=8)
    newcomer = add(scheduler, 1, max_tokens=1)
    step(scheduler, token=50)  # 1 + 2 blocks
    step(scheduler, token=51)  # 2 + 2
    step(scheduler)
    preempting = None
    while not (preempting := step(scheduler)[0]).preempted:
        pass
    assert preempting.preempted == [young]
    assert preempting.admitted == []  # not even the newcomer that would fit
    assert list(scheduler.waiting) == [young, newcomer]
    assert young.num_preemptions == scheduler.num_preemptions == 1
    output = preempting
    while young.status is RequestStatus.WAITING:
        assert newcomer.status is RequestStatus.WAITING
        output, _ = step(scheduler)
    assert old.is_finished
    resumed = next(scheduled for scheduled in output.rows if scheduled.request is young)
    assert resumed.start == 0
    assert resumed.token_ids == (*range(1, 7), 50, 51, 7, 7)[: resumed.num_tokens]


def test_newcomer_leaves_each_running_request_a_block_to_grow_into():
    scheduler = make_scheduler(num_blocks=1 + 6, rows=3)
    first, second = add(scheduler, 4, max_tokens=20), add(scheduler, 12, max_tokens=1)
    scheduler.schedule()
    assert list(scheduler.running) == [first, second]  # 1 + 3 blocks, one left for each of the two
    scheduler.finish(second, "abort")
    third = add(scheduler, 20, max_tokens=1)  # 5 blocks are free, just what it needs
    scheduler.schedule()
    assert third.status is RequestStatus.WAITING
    scheduler.finish(first, "abort")
    scheduler.schedule()
    assert third.status is RequestStatus.RUNNING


def launch_until_an_older_request_preempts(scheduler: Scheduler):
    """Two tokens a step, blocks of 4, a pool of 4: in step 9 the old one takes the block of the young one, whose prompt
    has just ended. Nothing has come back by then."""
    old, young = add(scheduler, 1, max_tokens=15), add(scheduler, 8, max_tokens=5)
    outputs = [scheduler.schedule() for _ in range(9)]
    assert [output.preempted for output in outputs] == [[]] * 8 + [[young]]
    assert [scheduled.request for scheduled in outputs[-1].rows] == [old]
    return old, young, outputs


def test_token_in_flight_at_a_preemption_is_kept_and_waited_for():
    scheduler = make_scheduler(num_blocks=1 + 4, rows=2, budget=2)
    old, young, outputs = launch_until_an_older_request_preempts(scheduler)
    assert young.num_in_flight == 1
    for token, output in enumerate(outputs):
        update(scheduler, output, result_of(output, token))
    check_scheduler(scheduler)
    assert young.output_ids == [7]
    assert (young.num_in_flight, young.status) == (0, RequestStatus.WAITING)
    scheduler.finish(old, "abort")
    output, _ = step(scheduler)
    assert output.admitted == [young]
    assert output.rows[0].token_ids == (1, 2)


def test_preempted_request_is_not_admitted_before_its_token_is_back():
    scheduler = make_scheduler(num_blocks=1 + 4, rows=2, budget=2)
    old, young, outputs = launch_until_an_older_request_preempts(scheduler)
    scheduler.finish(old, "abort")
    assert scheduler.schedule().rows == []
    for output in outputs:
        update(scheduler, output, result_of(output))
    assert scheduler.schedule().admitted == [young]


def test_preempted_request_can_finish_by_its_late_token():
    scheduler = make_scheduler(num_blocks=1 + 4, rows=2, budget=2)
    _, young, outputs = launch_until_an_older_request_preempts(scheduler)
    for output in outputs:
        update(scheduler, output, result_of(output, EOS))
    assert young.finish_reason == "stop"
    assert not scheduler.has_requests
    check_scheduler(scheduler)


def test_restart_requeues_in_order_and_forgets_what_was_in_flight():
    scheduler = make_scheduler(rows=2)
    first, second, third = (add(scheduler, 3, name=name) for name in "abc")
    output = scheduler.schedule()
    update(scheduler, output, result_of(output, token=5))
    scheduler.schedule()
    scheduler.restart()
    check_scheduler(scheduler)
    assert list(scheduler.waiting) == [first, second, third]
    assert [request.num_in_flight for request in (first, second)] == [0, 0]
    output, _ = step(scheduler)
    assert [scheduled.token_ids for scheduled in output.rows] == [(1, 2, 3, 5)] * 2
    assert first.num_preemptions == 0


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_long_request_beside_endless_short_ones_finishes_soon(depth):
    """Bounded waiting and bounded preemption, whatever keeps arriving, with `depth` steps in flight."""
    rng = random.Random(depth)
    scheduler = make_scheduler(num_blocks=1 + 16, rows=8, block_size=4, budget=8)
    born: dict[Request, int] = {}
    long_request = None
    in_flight = []
    for now in range(1000):
        if now == 20:
            long_request = add(scheduler, 40, max_tokens=20)
            born[long_request] = now
        while len(scheduler.waiting) < 4:
            born[add(scheduler, rng.randint(1, 12), max_tokens=rng.randint(1, 12))] = now
        in_flight.append(scheduler.schedule())
        assert in_flight[-1].rows or len(in_flight) > 1, "nothing to do and nothing awaited"
        assert in_flight[-1].num_tokens <= scheduler.max_num_batched_tokens
        while len(in_flight) > depth:
            output = in_flight.pop(0)
            update(scheduler, output, result_of(output))
        check_scheduler(scheduler)
        order = [born[request] for request in scheduler.requests()]
        assert order == sorted(order), "a younger request has overtaken an older one"
        assert all(now - born[request] < 200 for request in scheduler.requests())
        assert all(request.num_preemptions <= 4 for request in scheduler.requests())
    assert long_request is not None
    assert long_request.finish_reason == "length"
    assert scheduler.num_preemptions > 0, "the pool was meant to run out"


def test_forks_begin_with_the_prompts_last_chunk_and_share_its_hidden_state():
    scheduler = make_scheduler(budget=4)
    request = add(scheduler, prompt_len=6, max_tokens=3)
    forks = [request.add_fork(name, index) for index, name in enumerate("bc", start=1)]
    first, _ = step(scheduler)
    assert (first.samples, len(scheduler.running)) == ([], 1)
    second, outputs = step(scheduler)
    assert spans(second) == [(0, 4, 2)]
    samples = [(sample.request, sample.row, sample.position) for sample in second.samples]
    assert samples == [(request, 0, 6), (forks[0], 0, 6), (forks[1], 0, 6)]
    assert second.admitted == forks
    assert [output.request_id for output in outputs] == ["r", "b", "c"]
    assert scheduler.num_forks == 2
    third, _ = step(scheduler)
    assert spans(third) == [(0, 6, 1), (1, 6, 1), (2, 6, 1)]
    assert third.moves[0].copies == [(0, 2, 3), (0, 2, 4)]  # the last to write has the block to itself
    assert third.table_deltas == [(0, 0, 1, 3), (0, 1, 1, 4)]


def test_forks_without_a_row_wait_in_front_and_find_the_prompt_computed():
    scheduler = make_scheduler(rows=2, prefix_caching=True)
    request = add(scheduler, prompt_len=10, max_tokens=2)
    forks = [request.add_fork(name, index) for index, name in enumerate("bcd", start=1)]
    newcomer = add(scheduler, prompt_len=3)
    newcomer.cache_salt = "other"
    output, _ = step(scheduler)
    assert [sample.request for sample in output.samples] == [request, forks[0]]
    assert list(scheduler.waiting) == [forks[1], forks[2], newcomer]
    step(scheduler)
    assert request.is_finished
    output, _ = step(scheduler)
    assert output.admitted == [forks[1], forks[2]]
    assert [scheduled.start for scheduled in output.rows] == [9, 9]
    assert scheduler.num_forks == 1


def test_no_more_forks_begin_than_a_step_can_serve():
    scheduler = make_scheduler(rows=8, budget=3)
    request = add(scheduler, prompt_len=2, max_tokens=5)
    forks = [request.add_fork(name, index) for index, name in enumerate("bcdef", start=1)]
    step(scheduler)
    assert list(scheduler.running) == [request, *forks[:2]]
    while not request.is_finished:
        before = len(request.token_ids)
        step(scheduler)
        assert len(request.token_ids) == before + 1
    while scheduler.has_requests:
        step(scheduler)
    assert {len(fork.output_ids) for fork in forks} == {5}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("parent", [False, True])
def test_abort_of_one_answer_leaves_the_others(begun, parent):
    scheduler = make_scheduler(budget=8 if begun else 4)
    request = add(scheduler, prompt_len=6, max_tokens=3)
    fork = request.add_fork("b", 1)
    step(scheduler)
    aborted, other = (request, fork) if parent else (fork, request)
    scheduler.finish(aborted, "abort")
    check_scheduler(scheduler)
    while scheduler.has_requests:
        step(scheduler)
    assert (len(other.output_ids), other.finish_reason) == (3, "length")
    assert aborted.finish_reason == "abort"
    assert scheduler.block_manager.num_free(0) == 99


def test_prefix_hits_are_counted_once_per_request():
    scheduler = make_scheduler(num_blocks=1 + 7, rows=2, prefix_caching=True)
    first = add(scheduler, prompt_len=9, max_tokens=1)
    step(scheduler)
    assert (scheduler.prefix_queries, scheduler.prefix_hits, first.num_cached_tokens) == (9, 0, 0)
    old, young = add(scheduler, prompt_len=9, max_tokens=19), add(scheduler, prompt_len=9, max_tokens=19)
    while scheduler.has_requests:
        step(scheduler)
    assert young.num_preemptions
    assert (old.num_cached_tokens, young.num_cached_tokens) == (8, 8)
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (27, 16)


def test_waiting_head_of_the_queue_is_looked_at_again_only_after_blocks_came_back(monkeypatch):
    scheduler = make_scheduler(num_blocks=1 + 4, rows=2)
    add(scheduler, prompt_len=8, max_tokens=8)
    step(scheduler)
    add(scheduler, prompt_len=8, max_tokens=8)
    looked, match = [], scheduler.block_manager.match
    monkeypatch.setattr(scheduler.block_manager, "match", lambda request: looked.append(1) or match(request))
    while scheduler.has_requests:
        step(scheduler)
    assert len(looked) == 2
