"""xlaserve and its peers, one after the other in turns, in one run on one machine: medians, spreads and ratios.

    python -m benchmarks.peers --json peers.json \\
        --vllm ENVIRONMENT FOLDER --llama LLAMA_SERVER Q8_0.gguf BF16.gguf --openvino PYTHON Q8_0.gguf

A peer that is not given is left out. Each round starts every contender anew, puts the loads on it and ends it, so that
what drifts on the machine drifts for all. Over HTTP the loads are those of benchmarks/load.py, the same for all and in
every round, without prefix caches; offline they are batches of the same prompts (benchmarks/offline_generate.py and
openvino_generate.py). OpenVINO's time to first token, start and memory, which are offline, stand beside our server's.
docs/benchmarks.md tells how to install the peers, and how long it takes. Needs the extra `bench`.
"""

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.load import Load, run
from benchmarks.peer_process import PeerFailed, offline, server
from benchmarks.peer_table import OURS, Figures, markdown, summary
from xlaserve.bench.server_process import get

HTTP_LOADS = {
    "c=1": Load(num_requests=6, concurrency=1, seed=1),  # no load has another's prompts
    "c=8": Load(num_requests=34, concurrency=8, seed=2),
    "c=16": Load(num_requests=34, concurrency=16, seed=3),
    "mixed": Load(num_requests=48, concurrency=16, mixed=True, seed=4),
}
OFFLINE = "offline"
BATCHES = ("1", "8", "16")
LOAD_SECONDS = 900.0
TTFT, ITL, READY = "TTFT p50, c=1 (ms)", "ITL p50, c=16 (ms)", "ready after (s)"
PEAK, REST = "resident at most (MiB)", "resident beside weights and KV pool (MiB)"


@dataclass(frozen=True)
class Contender:
    name: str  # of several with one name the figures are put together
    measure: Callable[[], Figures]


def over_http(command: Sequence[str], health: str, loads: Sequence[str]) -> dict[str, float]:
    with server(command, health) as (url, ready, peer):
        model = json.loads(get(f"{url}/v1/models"))["data"][0]["id"]
        found = {}
        for name in loads:
            row = asyncio.run(asyncio.wait_for(run(url, model, HTTP_LOADS[name]), LOAD_SECONDS))
            if row["errors"] or row["short"]:
                raise peer.failed(f"{name}: {row['short']} answers too short, errors: {row['errors']}")
            found[f"{name}, tokens/s"] = row["tokens_per_s"]
            found |= {"c=1": {TTFT: row["ttft_p50_ms"]}, "c=16": {ITL: row["itl_p50_ms"]}}.get(name, {})
        found |= {READY: ready, PEAK: peer.memory_mib("VmHWM")}
        if health == "/ready":
            metrics = get(f"{url}/metrics").decode()
            known = sum(map(float, re.findall(r"^xlaserve:(?:weight|kv_pool)_bytes\S* (\S+)$", metrics, re.MULTILINE)))
            found[REST] = peer.memory_mib("VmRSS") - known / 2**20
    return found


def in_batches(command: Sequence[str]) -> dict[str, float]:
    """Throughput, and where the rows tell it the time to first token, with it start and memory."""
    ready, rows, peak = offline([*command, "--batches", *BATCHES])
    found = {}
    for batch in BATCHES:
        of_batch = [row for row in rows if str(row["batch"]) == batch]
        found[f"offline, batch of {batch}, tokens/s"] = median(row["tokens_per_s"] for row in of_batch)
        if batch == "1" and "ttft_ms" in of_batch[0]:
            found |= {TTFT: median(row["ttft_ms"] for row in of_batch), READY: ready, PEAK: peak}
    return found


def contenders(args: argparse.Namespace) -> list[Contender]:
    """In the order in which they take turns."""
    http = [name for name in HTTP_LOADS if name in args.loads]
    found = []

    def serves(name: str, command: Sequence[str], health: str = "/health") -> None:
        if http:
            found.append(Contender(name, lambda: over_http(command, health, http)))

    def generates(name: str, command: Sequence[str]) -> None:
        if OFFLINE in args.loads:
            found.append(Contender(name, lambda: in_batches(command)))

    serves(OURS, ours(args.model), "/ready")
    if args.vllm:
        serves("vLLM", vllm(*args.vllm))
    for file in args.llama[1:]:
        serves(f"llama.cpp, {Path(file).stem}", llama(args.llama[0], file))
    generates(OURS, [sys.executable, "-m", "benchmarks.offline_generate", args.model])
    if args.openvino:
        python, file = args.openvino
        generates("OpenVINO GenAI", [python, "-m", "benchmarks.openvino_generate", file])
    return found


def ours(model: str) -> list[str]:
    main = "from xlaserve.cli.main import main; main(prog_name='xlaserve')"
    settings = ["--model", model, "--set", "cache.prefix_caching=false"]
    return [sys.executable, "-c", main, "serve", *settings, "--port", "{port}"]


def vllm(environment: str, model: str) -> list[str]:
    """With all cores of this process, and Intel's OpenMP: without either it is slower by half."""
    last, library = max(os.sched_getaffinity(0)), f"{environment}/lib/libiomp5.so"
    variables = ["VLLM_CPU_KVCACHE_SPACE=2", "HF_HUB_OFFLINE=1", f"VLLM_CPU_OMP_THREADS_BIND=0-{last}"]
    variables += [f"OMP_NUM_THREADS={len(os.sched_getaffinity(0))}", f"LD_PRELOAD={library}"]
    settings = ["--dtype", "bfloat16", "--max-model-len", "2048", "--no-enable-prefix-caching"]
    return ["env", *variables, f"{environment}/bin/vllm", "serve", model, *settings, "--port", "{port}"]


def llama(binary: str, file: str) -> list[str]:
    """16 requests of 2,048 tokens at a time; no prompt is kept."""
    threads = str(len(os.sched_getaffinity(0)))
    settings = ["-np", "16", "-c", "32768", "-t", threads, "--no-cache-prompt", "--cache-ram", "0"]
    return [binary, "-m", file, *settings, "--port", "{port}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="ours: demo, a folder or a GGUF file; absolute")
    parser.add_argument("--vllm", nargs=2, metavar=("ENVIRONMENT", "FOLDER"))
    parser.add_argument("--llama", nargs="+", default=[], metavar=("LLAMA_SERVER", "FILE"))
    parser.add_argument("--openvino", nargs=2, metavar=("PYTHON", "FILE"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", nargs="+", choices=[*HTTP_LOADS, OFFLINE], default=[*HTTP_LOADS, OFFLINE])
    parser.add_argument("--json", type=Path, help="written after each round")
    args = parser.parse_args()
    try:
        measure(args)
    except PeerFailed as error:
        raise SystemExit(str(error)) from error


def measure(args: argparse.Namespace) -> None:
    """Prints the table; the JSON has what it is made of."""
    turns = contenders(args)
    if any(turn.name == OURS for turn in turns):
        with server(ours(args.model), "/ready"):  # from now on its programs are in the compilation cache
            pass
    rounds: list[dict[str, Figures]] = []
    for number in range(args.rounds):
        rounds.append({})
        for turn in turns:
            print(f"round {number + 1} of {args.rounds}: {turn.name}", file=sys.stderr, flush=True)
            rounds[-1][turn.name] = {**rounds[-1].get(turn.name, {}), **turn.measure()}
        if args.json:
            args.json.write_text(json.dumps({"rounds": rounds, "summary": summary(rounds)}, indent=2) + "\n")
    print(markdown(rounds))


if __name__ == "__main__":
    main()
