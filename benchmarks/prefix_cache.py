"""What the prefix cache gives where prompts begin alike, and what it costs where they do not: two servers, in turns.

    python -m benchmarks.prefix_cache                       # the demo model; after --: what `xlaserve serve` takes

Prints one JSON line. Shared: 64 requests of 32 words behind the same 1,024 tokens, at 8 at a time, after one that
primes the cache. Unshared: prompts that nobody has sent before. Needs the extra `bench`.
"""

import argparse
import asyncio
import dataclasses
import json
import statistics
import urllib.request

from benchmarks.load import Load, run
from xlaserve.bench.server_process import serving

# A word is a token.
SHARED = Load(num_requests=64, concurrency=8, prompt_words=32, max_tokens=8, shared_words=1024)
UNSHARED = Load(num_requests=24, concurrency=8)


def measure(url: str, load: Load) -> dict:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
        model = json.loads(response.read())["data"][0]["id"]
    row = asyncio.run(run(url, model, load))
    if row["errors"] or row["short"]:
        raise SystemExit(f"{row['short']} answers too short, errors: {row['errors']}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of unshared load, on each server in turn")
    parser.add_argument("serve", nargs="*", help="arguments of `xlaserve serve`")
    args = parser.parse_args()
    speeds: dict[str, list[float]] = {"on": [], "off": []}
    with serving(args.serve) as on, serving([*args.serve, "--set", "cache.prefix_caching=false"]) as off:
        urls = {"on": on, "off": off}
        first_token = {name: measure(url, SHARED)["ttft_p50_ms"] for name, url in urls.items()}
        for number in range(args.rounds):
            load = dataclasses.replace(UNSHARED, seed=1 + number)
            for name, url in urls.items():
                speeds[name].append(measure(url, load)["tokens_per_s"])
    result = {
        "benchmark": "prefix_cache",
        "shared_ttft_p50_ms": first_token,
        "shared_ttft_ratio": round(first_token["off"] / first_token["on"], 2),
        "unshared_tokens_per_s": speeds,
        "unshared_ratio": round(statistics.median(a / b for a, b in zip(speeds["on"], speeds["off"], strict=True)), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
