"""What a JSON schema costs: the same prompts and as many tokens, with a schema and without, in turns.

    python -m benchmarks.structured [--model demo] [--rows 16] [--tokens 96] [--rounds 5] [--temperature 0]

Prints one JSON line. By way: output tokens per second (median of the rounds); by what part the free way is faster
(median of the rounds' ratios, less 1); steps of a round, which are fewer than tokens where a schema leaves nothing to
choose. A slow moment of the machine meets all ways.
"""

import argparse
import json
import statistics
import time
from unittest import mock

from xlaserve import LLM, SamplingParams
from xlaserve.engine import build
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.grammar import Grammar

PROPERTIES = {
    "name": {"type": "string", "minLength": 3, "maxLength": 24},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    "score": {"type": "number"},
}
LONG_NAMES = {
    "name": "full_name_of_the_customer_as_on_the_invoice",
    "age": "age_in_years_at_the_time_of_the_last_order",
    "tags": "colours_that_were_ordered_within_the_last_twelve_months",
    "score": "satisfaction_score_of_the_last_survey",
}
TOPICS = ["people", "cars", "cities", "birds", "rivers", "songs", "ships", "trees", "games", "books", "dogs", "wines"]


class CountedEngine(LLMEngine):
    """Counts the steps that computed something."""

    num_steps = 0

    def step(self):
        outputs = super().step()
        CountedEngine.num_steps += self.last_step_tokens > 0
        return outputs


def schema(properties: dict) -> Grammar:
    """Objects without end: tokens are to be measured, not answers."""
    each = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Grammar("json_schema", json.dumps({"type": "array", "minItems": 1000, "items": each}))


WAYS = {
    "free": None,
    "schema": schema(PROPERTIES),
    "schema with long names": schema({LONG_NAMES[name]: each for name, each in PROPERTIES.items()}),
}


def measure(llm: LLM, prompts: list[str], params: SamplingParams) -> tuple[float, int]:
    """Tokens per second, steps."""
    start, steps = time.perf_counter(), CountedEngine.num_steps
    answers = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    assert all(len(answer.token_ids) == params.max_tokens for answer in answers)
    return sum(len(answer.token_ids) for answer in answers) / seconds, CountedEngine.num_steps - steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="as `model.source` of a config")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96, help="generated per row and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    options = {"max_tokens": args.tokens, "temperature": args.temperature, "seed": 1, "ignore_eos": True}
    ways = {name: SamplingParams(**options, grammar=grammar) for name, grammar in WAYS.items()}
    prompts = [f"A long JSON list of {TOPICS[row % len(TOPICS)]}, number {row}:" for row in range(args.rows)]
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    steps: dict[str, int] = {}
    settings = [f"scheduler.max_num_seqs={args.rows}", "model.max_model_len=512", "cache.prefix_caching=false"]
    with mock.patch.object(build, "LLMEngine", CountedEngine), LLM(args.model, overrides=settings) as llm:
        for params in ways.values():
            llm.generate(prompts[:1], params)  # grammars are compiled here
        for _ in range(args.rounds):
            for name, params in ways.items():
                speed, steps[name] = measure(llm, prompts, params)
                speeds[name].append(speed)
    cost = {name: [free / ruled - 1 for free, ruled in zip(speeds["free"], of_way, strict=True)]
            for name, of_way in speeds.items() if name != "free"}  # fmt: skip
    result = {
        "benchmark": "structured",
        "rows": args.rows,
        "tokens": args.tokens,
        "tokens_per_s": {name: round(statistics.median(of_way), 1) for name, of_way in speeds.items()},
        "cost": {name: round(statistics.median(ratios), 3) for name, ratios in cost.items()},
        "steps": steps,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
