"""What sampling costs: steps of the demo model with all rows sampling in one way, against greedy steps.

    python -m benchmarks.sampler [--rows 16] [--tokens 48] [--rounds 5]

The ways take turns, so that a slow moment of the machine meets all. Prints one JSON line: milliseconds per step (median
of the rounds) by way, and the part by which each is slower than greedy.
"""

import argparse
import json
import statistics
import time
from typing import Any

from xlaserve import LLM, SamplingParams

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k and top_p": {"top_k": 40, "top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "everything": {"top_k": 40, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1, "logit_bias": {5: -1.0}},
}


def seconds_per_step(llm: LLM, params: SamplingParams, num_rows: int, num_tokens: int) -> float:
    """The prompts are one token each: every step but the first decodes all rows."""
    start = time.perf_counter()
    llm.generate([[token + 100] for token in range(num_rows)], params)
    return (time.perf_counter() - start) / num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48, help="generated per row and round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with LLM("demo", overrides=[f"scheduler.max_num_seqs={args.rows}", "model.max_model_len=256"]) as llm:
        for _ in range(args.rounds):
            for name, way in WAYS.items():
                params = SamplingParams(max_tokens=args.tokens, ignore_eos=True, **way)
                found[name].append(seconds_per_step(llm, params, args.rows, args.tokens))
    step_ms = {name: round(1000 * statistics.median(seconds), 2) for name, seconds in found.items()}
    over_greedy = {name: round(ms / step_ms["greedy"] - 1, 3) for name, ms in step_ms.items()}
    print(json.dumps({"benchmark": "sampler", "rows": args.rows, "step_ms": step_ms, "over_greedy": over_greedy}))


if __name__ == "__main__":
    main()
