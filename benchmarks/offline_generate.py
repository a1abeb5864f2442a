"""The engine without a server, in batches of prompts as benchmarks/load.py sends them: what openvino_generate does.

    python -m benchmarks.offline_generate [demo | FOLDER | FILE.gguf] [--batches 1 8 16] [--rounds 3]

Greedy, 128 words in, 64 tokens out; default settings, but no prefix cache. Prints a line when it is ready, then a line
of JSON per batch size and round.
"""

import argparse
import json
import time

from benchmarks.load import Load
from xlaserve import LLM, SamplingParams
from xlaserve.cli.options import cache_dir


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    params = SamplingParams(max_tokens=Load.max_tokens, temperature=0, ignore_eos=True)
    with LLM(args.model, overrides=["cache.prefix_caching=false"], cache_dir=cache_dir()) as llm:
        llm.generate("warm up", params)
        print("{}", flush=True)
        for batch in args.batches:
            for number in range(args.rounds):
                prompts = [prompt for prompt, _ in Load(num_requests=batch, seed=number).jobs()]
                start = time.perf_counter()
                llm.generate(prompts, params)
                speed = batch * Load.max_tokens / (time.perf_counter() - start)
                print(json.dumps({"batch": batch, "tokens_per_s": round(speed, 1)}), flush=True)


if __name__ == "__main__":
    main()
