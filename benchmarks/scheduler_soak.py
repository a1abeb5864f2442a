"""Many requests through the simulated engine: how long the host takes, and whether its memory grows.

    python -m benchmarks.scheduler_soak [--requests 100000] [--output-tokens 100]

Prints one JSON line: seconds of wall clock and of this process's own time, and its resident memory after each fifth.
"""

import argparse
import json
import os
import time
from pathlib import Path

from xlaserve.config import load_config
from xlaserve.engine.simulation.costs import CostModel
from xlaserve.engine.simulation.simulator import Simulator, Sizes
from xlaserve.engine.simulation.trace import Lengths, Workload

RATE = 100  # requests/s: below what the default costs and 256 rows can take, so that the queue stays short
PROMPT_TOKENS = 32


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def measure(num_requests: int, output_tokens: int) -> dict[str, object]:
    sizes = Sizes.of(load_config(None, []))
    lengths = Lengths(PROMPT_TOKENS), Lengths(output_tokens)
    workload = Workload(num_requests, *lengths, max_tokens=sizes.max_model_len, rate=RATE)
    simulator = Simulator(sizes, CostModel())
    resident: dict[int, float] = {}  # MiB, by requests finished

    def watch(finished: int) -> None:
        reached = finished // (num_requests // 5) * (num_requests // 5)
        if reached and reached not in resident:
            resident[reached] = resident_mib()

    wall, own = time.perf_counter(), time.process_time()
    simulator.run(workload.requests(), watch)
    wall, own = time.perf_counter() - wall, time.process_time() - own
    assert simulator.measures.finished.total() == num_requests
    return {
        "requests": num_requests,
        "output_tokens": simulator.measures.num_output_tokens,
        "steps": simulator.runner.commands["Body"],
        "simulated_s": round(simulator.clock.now, 1),
        "wall_s": round(wall, 1),
        "own_s": round(own, 1),
        "resident_mib": resident,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--output-tokens", type=int, default=100)
    args = parser.parse_args()
    print(json.dumps({"benchmark": "scheduler_soak"} | measure(args.requests, args.output_tokens)))


if __name__ == "__main__":
    main()
