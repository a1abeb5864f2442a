"""What prompt lookup brings and costs: the same requests with drafts and without, in turns, one engine for each.

    python -m benchmarks.prompt_lookup [--model demo] [--tokens 96] [--rounds 5] [--drafts 7] [-- KEY=VALUE ...]

Repetitive prompts (an edit of code, a text told again) one at a time and 16 at once; ordinary ones, sampled, likewise.
Prints one JSON line each: output tokens per second (medians of the rounds), the ratio with drafts to without (median of
the rounds' ratios, and the smallest and largest), and of the drafts how many there were and how many were right. A slow
moment of the machine meets both. After --: settings of both engines.
"""

import argparse
import inspect
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from xlaserve import LLM, SamplingParams
from xlaserve.core import deadlines

CODE = inspect.getsource(deadlines)
TEXT = """The harbour of Lindesund froze for the first time in eighty years. Fishing boats lay in rows between the
piers, and the ferry to the islands was replaced by a sledge with two horses. The mayor, Ingrid Halvorsen, told the
council that coal would last for nineteen days. On the twelfth day the wind turned, the ice broke with a noise like
thunder, and by the evening the first boat, the Sea Thrift, had left the harbour with eleven men and four women on
board."""
TOPICS = ["people", "cars", "cities", "birds", "rivers", "songs", "ships", "trees", "games", "books", "dogs", "wines",
          "clocks", "stars", "bread", "maps"]  # fmt: skip
REPETITIVE = {
    "code edit": f"A Python module:\n\n{CODE}\n\nThe same module, with the class Deadlines renamed to Timeouts:\n\n",
    "text told again": f"{TEXT}\n\nThe same story, told again in the same words:\n\n",
}
ORDINARY = [f"Here is what a child once asked me about {topic}, and what I answered." for topic in TOPICS]


def loads(tokens: int) -> Iterator[tuple[str, list[str], list[SamplingParams]]]:
    """Name, prompts, parameters."""
    greedy = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for name, prompt in REPETITIVE.items():
        yield f"{name}, c=1", [prompt], [greedy]
    yield "repetitive, c=16", [*REPETITIVE.values()] * 8, [greedy] * 16
    sampled = [SamplingParams(max_tokens=tokens, temperature=0.8, seed=i, ignore_eos=True) for i in range(16)]
    yield "ordinary, c=1", ORDINARY[:1], sampled[:1]
    yield "ordinary, c=16", ORDINARY, sampled


def tokens_per_second(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> float:
    start = time.perf_counter()
    answers = llm.generate(prompts, params)
    return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - start)


def measure(engines: dict[str, LLM], tokens: int, rounds: int) -> Iterator[dict[str, Any]]:
    speculation = engines["on"].service._loop._engine.scheduler.speculation
    assert speculation is not None
    counts = speculation.counts
    for name, prompts, params in loads(tokens):
        speeds: dict[str, list[float]] = {way: [] for way in engines}
        for llm in engines.values():
            tokens_per_second(llm, prompts, params)  # warm; what steps take is known from then on
        before = counts.num_tokens, sum(counts.num_accepted)
        for _ in range(rounds):
            for way, llm in engines.items():
                speeds[way].append(tokens_per_second(llm, prompts, params))
        ratios = [on / off for on, off in zip(speeds["on"], speeds["off"], strict=True)]
        yield {
            "load": name,
            "tokens_per_s": {way: round(statistics.median(found), 1) for way, found in speeds.items()},
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
            "drafts": counts.num_tokens - before[0],
            "accepted": sum(counts.num_accepted) - before[1],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="as `model.source` of a config")
    parser.add_argument("--tokens", type=int, default=96, help="generated per request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--drafts", type=int, default=7, help="of a request in a step, at most")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    common = ["scheduler.max_num_seqs=16", "model.max_model_len=1024", "cache.prefix_caching=false", *args.settings]
    drafts = ["speculative.method=ngram", f"speculative.num_speculative_tokens={args.drafts}"]
    with LLM(args.model, overrides=[*common, *drafts]) as on, LLM(args.model, overrides=common) as off:
        for row in measure({"on": on, "off": off}, args.tokens, args.rounds):
            print(json.dumps({"benchmark": "prompt_lookup"} | row), flush=True)


if __name__ == "__main__":
    main()
