"""Runs requests that arrive at given steps, and notes after each decision of the scheduler who holds which block."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

from xlaserve.core.block_pool import NULL_BLOCK, BlockPool
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.step import SchedulerOutput
from xlaserve.engine.service import GenerationService
from xlaserve.sampling_params import SamplingParams

Holders = tuple[str, ...]  # ids of requests


class Arrival(NamedTuple):
    step: int  # after which it arrives: something must still be running then
    request_id: str
    prompt_ids: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Moment:
    """What one step runs with. `holders`, `known`, `tables` are per layer group, the first two then by block."""

    holders: tuple[tuple[Holders, ...], ...]
    known: tuple[tuple[bool, ...], ...]  # whether the block's contents can be found, by whoever begins alike
    tables: dict[str, tuple[tuple[int, ...], ...]]  # by request
    found: dict[str, tuple[int, int]]  # of the requests that begin here: tokens found in blocks, tokens there are
    copies: tuple[tuple[int, int, int], ...]  # (group, source, destination)
    preempted: Holders


def _observe(scheduler: Scheduler, output: SchedulerOutput) -> Moment:
    pools = scheduler.block_manager.pools
    holders: list[list[Holders]] = [[()] * pool.num_blocks for pool in pools]
    for request in scheduler.running:
        for group, table in enumerate(request.block_tables):
            for block in table:
                if block != NULL_BLOCK:
                    holders[group][block] += (request.request_id,)
    return Moment(
        holders=tuple(map(tuple, holders)),
        known=tuple(map(_known, pools)),
        tables={request.request_id: tuple(map(tuple, request.block_tables)) for request in scheduler.running},
        found={
            row.request.request_id: (row.start, len(row.request.token_ids))
            for row in output.rows
            if row.request in output.admitted
        },
        copies=tuple(copy for moves in output.moves for copy in moves.copies),
        preempted=tuple(request.request_id for request in output.preempted),
    )


def _known(pool: BlockPool) -> tuple[bool, ...]:
    return tuple(pool.is_known(block) for block in range(pool.num_blocks))


@contextmanager
def _recording(after_step: Callable[[int], None]) -> Iterator[list[Moment]]:
    """The moments of whatever engine steps meanwhile. `after_step` is called in its thread, with their number."""
    moments: list[Moment] = []
    schedule = Scheduler.schedule

    def recorded(scheduler: Scheduler) -> SchedulerOutput:
        output = schedule(scheduler)
        moments.append(_observe(scheduler, output))
        after_step(len(moments))
        return output

    with mock.patch.object(Scheduler, "schedule", recorded):
        yield moments


def record(service: GenerationService, arrivals: Sequence[Arrival]) -> list[Moment]:
    """`arrivals` in the order of their steps, the first at 0."""
    to_come, generations = deque(arrivals), []

    def arrive(step: int) -> None:
        while to_come and to_come[0].step <= step:
            arrival = to_come.popleft()
            generations.append(service.submit(arrival.prompt_ids, arrival.params, arrival.request_id))

    with _recording(arrive) as moments:
        arrive(0)
        for generation in generations:  # of which there are more and more
            for answer in (generation, *generation.forks):
                for _ in answer:
                    pass
    if to_come:
        raise ValueError(f"all was over before step {to_come[0].step}, when {to_come[0].request_id} was to arrive")
    return moments
