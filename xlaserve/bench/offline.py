"""Throughput and latency of the engine in this process, without a server; in the names of `vllm bench`."""

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from xlaserve.bench.figures import percentile
from xlaserve.bench.workload import Drawn, Job
from xlaserve.engine.generations import Generations
from xlaserve.engine.service import GenerationService
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.sampling_params import SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)


def token_prompts(tokenizer: Tokenizer, jobs: Iterable[Job], *, exact: bool) -> list[list[int]]:
    """exact: as many tokens as a prompt has words, which needs words that are a token or more each."""
    prompts = []
    for job in jobs:
        ids = tokenizer.encode(job.prompt)
        prompts.append(ids[: len(job.prompt.split())] if exact else ids)
    return prompts


def measure_throughput(
    service: GenerationService,
    prompts: Sequence[list[int]],
    output_lens: Sequence[int],
    on_done: Callable[[int], None],
) -> dict[str, Any]:
    """All requests at once, each answer of its whole length. Raises InvalidRequest for one that is too long."""
    generate(service, prompts[:1], [1])  # what is done once, is done
    seconds = generate(service, prompts, output_lens, on_done)
    num_inputs, num_outputs = sum(map(len, prompts)), sum(output_lens)
    return {
        "elapsed_time": seconds,
        "num_requests": len(prompts),
        "total_num_tokens": num_inputs + num_outputs,
        "requests_per_second": len(prompts) / seconds,
        "tokens_per_second": (num_inputs + num_outputs) / seconds,
        "output_tokens_per_second": num_outputs / seconds,
    }


def measure_latency(
    service: GenerationService,
    *,
    batch_size: int,
    input_len: int,
    output_len: int,
    warmups: int,
    iterations: int,
    seed: int,
    on_done: Callable[[int], None],
) -> dict[str, Any]:
    """Seconds that one batch takes, over and over. The prefix cache must be off: its prompts come again.

    Raises InvalidRequest for prompts that are too long.
    """
    jobs = list(Drawn(seed).fixed(batch_size, input_len, output_len))
    prompts = token_prompts(service.tokenizer, jobs, exact=True)
    latencies = []
    for iteration in range(warmups + iterations):
        latencies.append(generate(service, prompts, [output_len] * batch_size))
        on_done(iteration + 1)
    measured = sorted(latencies[warmups:])
    return {
        "avg_latency": fmean(measured),
        "latencies": latencies[warmups:],
        "percentiles": {str(percent): percentile(measured, percent) for percent in PERCENTILES},
        "output_tokens_per_second": batch_size * output_len / percentile(measured, 50),
    }


def generate(
    service: GenerationService,
    prompts: Sequence[list[int]],
    output_lens: Sequence[int],
    on_done: Callable[[int], None] = lambda _: None,
) -> float:
    """Seconds until all answers have ended. on_done(answers that have)."""
    params = [SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True) for length in output_lens]
    start, done = time.perf_counter(), 0
    generations = Generations(service, prompts, params, "bench")
    try:
        for _, delta in generations:
            if delta.finish_reason is not None:
                done += 1
                on_done(done)
    finally:
        generations.abort()
    return time.perf_counter() - start
