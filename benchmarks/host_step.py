"""The host's own work per step: `LLMEngine.step()` while every request decodes and the device costs nothing.

    python -m benchmarks.host_step [--requests 64 256] [--contexts 100 30000]

Prints a JSON line for each number of requests: milliseconds per step by context length. Equal figures mean that
no work grows with the context.
"""

import argparse
import gc
import json
import statistics
import time
from dataclasses import dataclass

import numpy as np

from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.runner.buckets import BucketUse
from xlaserve.runner.commands import Command, Sample, SampleResult
from xlaserve.sampling_params import MAX_LOGPROBS, SamplingParams

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Done:
    sampled: SampleResult

    def result(self) -> SampleResult:
        return self.sampled


class FreeRunner:
    """A device on which every step is done at once and every token is 1."""

    bucket_use = BucketUse()

    def execute(self, command: Command) -> Done | None:
        if not isinstance(command, Sample):
            return None
        n = len(command.rows)
        tokens, logprobs = np.ones(n, np.int32), np.zeros((n, MAX_LOGPROBS), np.float32)
        return Done(SampleResult(tokens, tokens == 1, logprobs[:, 0], logprobs.astype(np.int32), logprobs))

    def rebuild(self) -> None:
        pass


def measure(num_requests: int, context: int, num_steps: int) -> dict[str, float]:
    """Milliseconds per step: median and 99th percentile."""
    max_total = context + num_steps + 10
    budget = num_requests * context
    pool = GroupSpec(1 + num_requests * (max_total // BLOCK_SIZE + 2))
    blocks = BlockManager([pool], BLOCK_SIZE, max_step_tokens=budget)
    scheduler = Scheduler(blocks, max_num_seqs=num_requests, max_num_batched_tokens=budget)
    engine = LLMEngine(scheduler, FreeRunner())
    params = SamplingParams(temperature=0, max_tokens=None)
    for index in range(num_requests):
        engine.add_request(
            Request(str(index), [index + 2] * context, params, max_total, stop_ids=frozenset({0}), seed=0)
        )
    for _ in range(3):  # all prompts are one step
        engine.step()
    gc.collect()
    seconds = []
    for _ in range(num_steps):
        start = time.perf_counter()
        outputs = engine.step()
        seconds.append(time.perf_counter() - start)
        assert len(outputs) == num_requests
    percentiles = statistics.quantiles(seconds, n=100)
    return {"median_ms": round(1000 * percentiles[49], 3), "p99_ms": round(1000 * percentiles[98], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256], help="running at once")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 30_000], help="tokens of each request")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    for num_requests in args.requests:
        by_context = {str(context): measure(num_requests, context, args.steps) for context in args.contexts}
        row = {"benchmark": "host_step", "requests": num_requests, "by_context": by_context}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
