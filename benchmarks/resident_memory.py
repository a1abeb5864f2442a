"""What a server's resident memory is beside weights and KV pool, and whether 10,000 short requests leave it as it is.

    python -m benchmarks.resident_memory                     # the demo model
    python -m benchmarks.resident_memory --requests 2000 -- --set cache.dtype=int8   # after --: as `xlaserve serve`

16 at a time: prompts of 8 to 24 words, 1 to 6 tokens out, whole and streamed, with stop strings, logprobs or two
answers, and clients that leave half-way. Prints a line in Markdown every 250 requests, then how much each request
leaves, by a line fitted to the last three quarters, in which the KV pool has been written to everywhere. Exits with 1
when a request leaves more than 1 KiB, when there is more than 600 MB beside weights and KV pool, or when an answer is
wrong.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.fuzz import Outcomes, in_use, put_load, resident_mib
from benchmarks.fuzz_requests import FuzzRequest
from benchmarks.load import WORDS
from xlaserve.bench.server_process import get, serving_process

EVERY = 250  # requests
AT_A_TIME = 16
MAX_REST_MIB = 600e6 / 2**20
MAX_LEFT_KIB = 1.0  # of each request
KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "streamed": {"stream": True, "stream_options": {"include_usage": True}},
    "stop strings": {"stream": True, "stop": [" the", "\n", "."]},
    "logprobs": {"logprobs": 3},
    "two answers": {"n": 2, "temperature": 0.8},
    "left": {"stream": True},
}


class ShortRequests:
    """Of all kinds; the same sequence for the same seed."""

    def __init__(self, seed: int, model: str):
        self._random = random.Random(seed)
        self._model = model

    def next(self) -> FuzzRequest:
        rng = self._random
        kind = rng.choice(list(KINDS))
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(8, 24)))
        body = {"model": self._model, "prompt": prompt, "max_tokens": rng.randint(1, 6), "temperature": 0} | KINDS[kind]
        leaves = rng.choice([0, 1, 200]) if kind == "left" else None
        return FuzzRequest(kind, "POST", "/v1/completions", json.dumps(body).encode(), leaves=leaves)


def gauge_mib(metrics: bytes, name: str) -> float:
    """Of one model."""
    (value,) = re.findall(rf"^xlaserve:{name}\{{.*\}} (\S+)$", metrics.decode(), re.MULTILINE)
    return float(value) / 2**20


def left_kib(resident: Sequence[float]) -> float:
    """What each request leaves, by a line through the last three quarters of `resident`: MiB after each EVERY."""
    late = resident[len(resident) // 4 :]
    slope, _ = np.polyfit(np.arange(len(late)) * EVERY, late, 1)
    return 1024 * float(slope)


def measure(url: str, pid: int, num_requests: int, faults: list[str]) -> Iterator[float]:
    """MiB that are resident after every EVERY requests. `faults` gets those of the answers."""
    requests = ShortRequests(0, json.loads(get(f"{url}/v1/models"))["data"][0]["id"])
    outcomes = Outcomes()
    for _ in range(num_requests // EVERY):
        put_load(url, requests, EVERY, AT_A_TIME, outcomes)
        yield resident_mib(pid)
    faults += outcomes.faults
    faults += [f"{name} is {value:g} in the end" for name, value in in_use(url).items() if value]
    refused = {key: count for key, count in outcomes.counts.items() if key[1] not in ("200", "left")}
    faults += [f"{kind}: {count} answers of status {status}" for (kind, status), count in refused.items()]


def verdict(resident: Sequence[float], weights: float, pool: float) -> tuple[str, list[str]]:
    """What was measured, in words, and what of it should not be. All in MiB."""
    rest, left = resident[-1] - weights - pool, left_kib(resident)
    text = (
        f"resident {resident[-1]:.0f} MiB: weights {weights:.0f}, KV pool {pool:.0f}, rest {rest:.0f}; "
        f"a request leaves {left:+.2f} KiB"
    )
    faults = [f"the rest is more than {MAX_REST_MIB:.0f} MiB"] if rest > MAX_REST_MIB else []
    faults += [f"a request leaves more than {MAX_LEFT_KIB:g} KiB"] if left > MAX_LEFT_KIB else []
    return text, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("serve", nargs="*", help="arguments of `xlaserve serve`")
    args = parser.parse_args()
    if args.requests < 8 * EVERY:
        parser.error(f"--requests: a line needs points; send at least {8 * EVERY}")
    faults: list[str] = []
    resident = []
    with serving_process(args.serve) as (url, pid):
        weights, pool = (gauge_mib(get(f"{url}/metrics"), name) for name in ("weight_bytes", "kv_pool_bytes"))
        print("| requests | resident (MiB) | beside weights and KV pool |\n|---|---|---|")
        print(f"| 0 | {resident_mib(pid):.1f} | {resident_mib(pid) - weights - pool:.1f} |", flush=True)
        for mib in measure(url, pid, args.requests, faults):
            resident.append(mib)
            print(f"| {EVERY * len(resident)} | {mib:.1f} | {mib - weights - pool:.1f} |", flush=True)
    text, found = verdict(resident, weights, pool)
    print(f"\n{text}")
    for fault in [*found, *faults]:
        print(fault, file=sys.stderr)
    sys.exit(bool(found or faults))


if __name__ == "__main__":
    main()
