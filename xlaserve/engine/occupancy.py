"""What only a walk over all requests tells: taken by the engine's thread, now and then, for whoever asks."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from xlaserve.core.scheduler import Scheduler

SECONDS = 1.0  # between two walks: ten thousand waiting requests take some milliseconds

QueueClass = tuple[str, int]  # (tenant, priority)


@dataclass(frozen=True)
class Occupancy:
    waiting: Mapping[QueueClass, tuple[int, float]]  # how many wait, and the arrival time of the oldest
    internal_waste: float  # see below


NOTHING = Occupancy({}, 0.0)


def take_occupancy(scheduler: Scheduler) -> Occupancy:
    waiting: dict[QueueClass, tuple[int, float]] = {}
    for request in itertools.chain(scheduler.waiting, scheduler.held):
        name = request.tenant, request.priority
        count, oldest = waiting.get(name, (0, request.arrival_time))
        waiting[name] = count + 1, min(oldest, request.arrival_time)
    return Occupancy(waiting, internal_waste(scheduler))


def internal_waste(scheduler: Scheduler) -> float:
    """The share of the slots in used blocks that hold no token. A token counts once its step is launched.

    Empty slots are those at the end of each table.
    """
    manager = scheduler.block_manager
    num_used = manager.num_used_blocks
    if not num_used:
        return 0.0
    tables = [(len(request.block_tables[0]), request.num_computed_tokens) for request in scheduler.running]
    num_empty = sum([columns * manager.block_size - num_tokens for columns, num_tokens in tables])
    return num_empty * len(manager.pools) / (num_used * manager.block_size)
