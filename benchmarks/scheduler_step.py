"""schedule() and update() while many requests run and many more wait, a few ending and starting in each step.

    python -m benchmarks.scheduler_step [--running 1000] [--waiting 10000]

Prints one JSON line: milliseconds, median and 99th percentile, of the wall clock and of this thread's own CPU time.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from benchmarks.host_step import BLOCK_SIZE, FreeRunner
from xlaserve.cli.memory import calm_garbage_collector
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.update import update
from xlaserve.runner.commands import Sample, SampleRow
from xlaserve.sampling_params import SamplingParams

T = TypeVar("T")
PROMPT_TOKENS = 32
OUTPUT_TOKENS = range(50, 150)  # one after the other: of 1,000 requests some ten end in a step
WARM_UP_STEPS = 150  # until the rows are full and the first requests have ended
PARAMS = SamplingParams(temperature=0, max_tokens=None)


class Stopwatch:
    def __init__(self):
        self.wall: list[float] = []  # seconds
        self.cpu: list[float] = []  # seconds

    def time(self, function: Callable[..., T], *args: Any) -> T:
        wall, cpu = time.perf_counter(), time.thread_time()
        result = function(*args)
        self.cpu.append(time.thread_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        return result

    def summary(self) -> dict[str, float]:
        percentiles = {"wall": statistics.quantiles(self.wall, n=100), "cpu": statistics.quantiles(self.cpu, n=100)}
        return {
            f"{clock}_{name}_ms": round(1000 * values[index], 3)
            for clock, values in percentiles.items()
            for name, index in (("median", 49), ("p99", 98))
        }


def make_request(number: int) -> Request:
    first = 2 + number * PROMPT_TOKENS  # no two prompts share a token
    total = PROMPT_TOKENS + OUTPUT_TOKENS[number % len(OUTPUT_TOKENS)]
    prompt_ids = list(range(first, first + PROMPT_TOKENS))
    return Request(str(number), prompt_ids, PARAMS, total, stop_ids=frozenset({0}), seed=0)


def measure(num_running: int, num_waiting: int, num_steps: int) -> dict[str, dict[str, float]]:
    """Each step is updated after the next is scheduled, as the engine does."""
    blocks_per_request = -(-(PROMPT_TOKENS + OUTPUT_TOKENS[-1]) // BLOCK_SIZE) + 2
    pool, budget = GroupSpec(1 + num_running * blocks_per_request), num_running * 4
    blocks = BlockManager([pool], BLOCK_SIZE, max_step_tokens=budget)
    scheduler = Scheduler(blocks, max_num_seqs=num_running, max_num_batched_tokens=budget)
    numbers, device = count(), FreeRunner()
    scheduling, updating = Stopwatch(), Stopwatch()
    in_flight = None
    for step in range(WARM_UP_STEPS + num_steps):
        if step == WARM_UP_STEPS:
            calm_garbage_collector()
            scheduling, updating = Stopwatch(), Stopwatch()
        while len(scheduler.waiting) < num_waiting:
            scheduler.add(make_request(next(numbers)))
        output = scheduling.time(scheduler.schedule)
        if in_flight:
            rows = tuple(SampleRow(0, sample.row, sample.position) for sample in in_flight.samples)
            command = Sample(rows, want_logprobs=False)
            done = device.execute(command)
            assert done
            updating.time(update, scheduler, in_flight, done.result())
        in_flight = output
    assert len(scheduler.running) > 0.95 * num_running
    return {"schedule": scheduling.summary(), "update": updating.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    found = measure(args.running, args.waiting, args.steps)
    print(json.dumps({"benchmark": "scheduler_step", "running": args.running, "waiting": args.waiting} | found))


if __name__ == "__main__":
    main()
