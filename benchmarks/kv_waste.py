"""How much of the KV pool holds no token, and how many requests share it, read from the metrics of a running engine.

    python -m benchmarks.kv_waste [--requests 6000] [--output-sigma 0.8]

A real engine with a tiny random model, on lengths as ShareGPT's: log-normal, 100 tokens in and 200 out in the mean, at
most 4,096 together. All requests are there at once; the pool has room for 20 of the greatest length in one piece.
Prints one JSON line: averages over time, while requests wait.
"""

import argparse
import json
import random
import statistics
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from xlaserve.engine.generations import Generations
from xlaserve.engine.llm import LLM
from xlaserve.engine.metrics import PREFIX
from xlaserve.engine.occupancy import SECONDS
from xlaserve.engine.service import GenerationService
from xlaserve.engine.simulation.trace import Lengths, TraceRequest, Workload
from xlaserve.sampling_params import SamplingParams

MAX_TOKENS = 4096
BLOCK_SIZE = 16
IN_ONE_PIECE = 20  # requests of MAX_TOKENS that the pool could hold
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_TOKENS,
    "rms_norm_eps": 1e-5,
}
SETTINGS = {
    "model.dtype": "float32",
    "cache.block_size": BLOCK_SIZE,
    "cache.num_blocks": 1 + IN_ONE_PIECE * MAX_TOKENS // BLOCK_SIZE,
    "scheduler.max_num_seqs": 512,
    "scheduler.max_num_batched_tokens": 2048,
}


def read_metrics(service: GenerationService) -> dict[str, float]:
    """The gauges that matter here, as a scraper sees them."""
    samples = (
        sample
        for family in text_string_to_metric_families(service.metrics.render().decode())
        for sample in family.samples
    )
    names = ("kv_internal_waste", "num_requests_running", "num_requests_waiting")
    return {s.name.removeprefix(PREFIX): s.value for s in samples if s.name.removeprefix(PREFIX) in names}


def watch(service: GenerationService, done: threading.Event) -> Iterator[dict[str, float]]:
    """As often as the waste is counted anew, while requests wait and after the first few have filled the pool."""
    while not done.wait(SECONDS):
        found = read_metrics(service)
        if found["num_requests_waiting"] and found["num_requests_running"] > IN_ONE_PIECE:
            yield found


def run(service: GenerationService, requests: list[TraceRequest]) -> list[dict[str, float]]:
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(request.prompt_tokens)] for request in requests]
    params = [SamplingParams(max_tokens=request.output_tokens, ignore_eos=True) for request in requests]
    done, samples = threading.Event(), []
    watcher = threading.Thread(target=lambda: samples.extend(watch(service, done)))
    watcher.start()
    generations = Generations(service, prompts, params, "waste")
    try:
        for _ in generations:
            pass
    finally:
        generations.abort()
        done.set()
        watcher.join()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--output-sigma", type=float, default=0.8, help="of the logarithm of their lengths")
    args = parser.parse_args()
    workload = Workload(args.requests, Lengths(100, 1.0), Lengths(200, args.output_sigma), MAX_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(MODEL))
        overrides = [f"{key}={value}" for key, value in SETTINGS.items()]
        with LLM(f"random:{config}", overrides=overrides) as llm:
            samples = run(llm.service, list(workload.requests()))
    running = statistics.mean(sample["num_requests_running"] for sample in samples)
    waste = statistics.mean(sample["kv_internal_waste"] for sample in samples)
    result = {
        "benchmark": "kv_waste",
        "requests": args.requests,
        "samples": len(samples),
        "internal_waste": round(waste, 4),
        "running": round(running, 1),
        "over_contiguous": round(running / IN_ONE_PIECE, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
