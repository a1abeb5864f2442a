"""What other weights cost a running engine: the longest gap in eight streams, compilations, failures, and memory.

    python -m benchmarks.weight_swap --path "$(xlaserve fetch demo)" [--model demo] [--times 10]

Eight clients stream all the time, each request of 128 tokens. After some seconds without a swap, one swap of each
policy, then as many more by turns; then as many sleeps of either level, nobody streaming. Memory is read when all is
idle. --path: other weights of the same architecture; the model's own file will do, as what is read and replaced is the
same. Prints one JSON line.
"""

import argparse
import json
import statistics
import threading
import time
from pathlib import Path

from xlaserve.engine.llm import LLM
from xlaserve.engine.model_admin import ModelAdmin, SleepLevel, SwapPolicy
from xlaserve.runner.compilations import LOG
from xlaserve.sampling_params import SamplingParams

NUM_STREAMS = 8
PARAMS = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
POLICIES: tuple[SwapPolicy, ...] = ("drain", "recompute", "abort")
LEVELS: tuple[SleepLevel, ...] = (1, 2)
SECONDS = 5.0


def resident_bytes() -> int:
    """Of this process."""
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


class Clients:
    """They stream until `stop`; gaps: (when it ended, seconds) between two tokens of one stream."""

    def __init__(self, llm: LLM):
        self._llm = llm
        self._stopped = threading.Event()
        self.gaps: list[tuple[float, float]] = []
        self.ends: list[str | None] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(NUM_STREAMS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._stopped.is_set():
            prompt = self._llm.tokenizer.encode(f"Story {number}: once upon a time, " + "and then " * 20)
            last = None
            for delta in self._llm.service.submit(prompt, PARAMS):
                now = time.monotonic()
                if last is not None:
                    self.gaps.append((now, now - last))
                last = now
                if delta.finish_reason:
                    self.ends.append(delta.finish_reason)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def longest_gap(self, since: float) -> float:
        return max((seconds for when, seconds in list(self.gaps) if when >= since), default=0.0)


def swap_once(admin: ModelAdmin, clients: Clients, path: Path, policy: SwapPolicy) -> dict:
    started, num_ends = time.monotonic(), len(clients.ends)
    report = admin.swap(path, policy, 60.0)
    time.sleep(1.0)
    ends = clients.ends[num_ends:]
    return {
        "policy": policy,
        "longest_gap_s": round(clients.longest_gap(started), 3),
        "failed": sum(reason not in ("length", "stop") for reason in ends),
        "seconds": {part: round(seconds, 3) for part, seconds in report.seconds.items()},
    }


def sleep_once(llm: LLM, admin: ModelAdmin, level: SleepLevel) -> float:
    """Seconds to wake; something is computed after, so that all memory is there that is needed."""
    admin.sleep(level, 60.0)
    started = time.monotonic()
    admin.wake()
    seconds = time.monotonic() - started
    llm.generate(["once upon a time"] * NUM_STREAMS, SamplingParams(temperature=0, max_tokens=8))
    return round(seconds, 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    with LLM(arguments.model) as llm:
        admin = llm.service.admin
        assert admin is not None
        llm.generate(["warm up"], PARAMS)
        compiled = sum(LOG.compiled().values())
        clients = Clients(llm)
        time.sleep(SECONDS)
        began = time.monotonic()
        time.sleep(SECONDS)
        calm = [seconds for when, seconds in list(clients.gaps) if when >= began]
        swaps = [swap_once(admin, clients, arguments.path, policy) for policy in POLICIES]
        clients.stop()
        before = resident_bytes()
        clients = Clients(llm)
        for number in range(arguments.times):
            admin.swap(arguments.path, POLICIES[number % 3], 60.0)
        clients.stop()
        swapped = resident_bytes()
        wakes = {level: [sleep_once(llm, admin, level) for _ in range(arguments.times)] for level in LEVELS}
        print(
            json.dumps(
                {
                    "calm_gap_s": {"median": round(statistics.median(calm), 3), "longest": round(max(calm), 3)},
                    "swaps": swaps,
                    "compilations": sum(LOG.compiled().values()) - compiled,
                    "wake_s": {f"level {level}": statistics.median(seconds) for level, seconds in wakes.items()},
                    "resident_mib": {
                        "before": before >> 20,
                        "after_swaps": swapped >> 20,
                        "after_sleeps": resident_bytes() >> 20,
                    },
                }
            )
        )


if __name__ == "__main__":
    main()
