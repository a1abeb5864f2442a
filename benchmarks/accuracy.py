"""What fewer bits cost: perplexity of a text, and agreement with float32's greedy answers, through the engine.

    python -m benchmarks.accuracy [--models smollm2 gemma3] [--ways int8 fp8] [--text LICENSE] [--tokens 2048]

Prints a table in Markdown, a line for each way as it is done. Perplexity: of the text's first tokens, by prompt
logprobs. Agreement is with transformers' recorded answers in float32 (tests/data/golden), each token given what was
recorded before it; beside it the widest gap, in nats, by which float32 preferred another than the likeliest here.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fetch_models import fetch_gemma
from xlaserve import LLM, SamplingParams
from xlaserve.cli.options import cache_dir
from xlaserve.models.demo_model import fetch_demo

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden"
MODELS = {
    "smollm2": ("SmolLM2-135M", lambda folder: fetch_demo(folder, print), "smollm2-135m.json"),
    "gemma3": ("Gemma 3 270M", fetch_gemma, "gemma3-270m.json"),
}
WAYS = {  # (model.dtype, model.quantization, cache.dtype)
    "float32": ("float32", "none", "auto"),
    "none": ("bfloat16", "none", "auto"),
    "int8": ("bfloat16", "int8", "auto"),
    "int8_weight_only": ("bfloat16", "int8_weight_only", "auto"),
    "fp8": ("bfloat16", "fp8", "auto"),
    "kv-int8": ("bfloat16", "none", "int8"),
    "kv-fp8": ("bfloat16", "none", "fp8"),
    "int8-kv-int8": ("bfloat16", "int8", "int8"),
}
SCORED = SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=0)
HEADER = ("model", "model.dtype", "model.quantization", "cache.dtype", "perplexity", "", "agreement", "widest gap")


@dataclass(frozen=True)
class Agreement:
    same: int  # tokens that are the likeliest here too
    total: int
    widest_gap: float  # nats, in float32, between its token and the likeliest here; infinity: beyond the recorded five


def perplexity(llm: LLM, token_ids: Sequence[int]) -> float:
    """Of each token but the first, given all before it."""
    (completion,) = llm.generate([token_ids], SCORED)
    logprobs = [token.logprob or 0.0 for token in (completion.prompt_tokens or ())[1:]]
    return math.exp(-sum(logprobs) / len(logprobs))


def agreement(llm: LLM, cases: Sequence[dict]) -> Agreement:
    """cases: of a file of tests/data/golden."""
    prompts = [case["prompt_ids"] + case["output_ids"] for case in cases]
    scored = llm.generate(prompts, SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=1))
    same = total = 0
    widest = 0.0
    for case, completion in zip(cases, scored, strict=True):
        told = (completion.prompt_tokens or [])[len(case["prompt_ids"]) :]
        for step, token in zip(case["steps"], told, strict=True):
            total += 1
            likeliest = token.top[0][0]
            if likeliest == step["id"] or token.rank == 1:
                same += 1
            else:
                recorded = dict(map(tuple, step["top"]))
                widest = max(widest, step["logprob"] - recorded.get(likeliest, -math.inf))
    return Agreement(same, total, widest)


def started(model: Path, way: str, folder: Path, max_model_len: int) -> LLM:
    dtype, quantization, kv_dtype = WAYS[way]
    overrides = [
        f"model.dtype={dtype}", f"model.quantization={quantization}", f"cache.dtype={kv_dtype}",
        f"model.max_model_len={max_model_len}", "scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=256",
    ]  # fmt: skip
    return LLM(str(model), overrides=overrides, cache_dir=folder)


def rows(model: str, ways: Sequence[str], text: str, num_tokens: int, folder: Path) -> Iterator[tuple[str, ...]]:
    name, fetch, golden = MODELS[model]
    cases = json.loads((GOLDEN / golden).read_text())["cases"]
    base = None  # perplexity of bfloat16
    for way in ways:
        with started(fetch(folder), way, folder, num_tokens + 1) as llm:
            found, agreed = perplexity(llm, llm.tokenizer.encode(text)[:num_tokens]), agreement(llm, cases)
        base = found if way == "none" else base
        beside = f"{100 * (found / base - 1):+.2f}%" if base and way != "none" else ""
        share = f"{100 * agreed.same / agreed.total:.1f}% of {agreed.total}"
        yield name, *WAYS[way], f"{found:.3f}", beside, share, f"{agreed.widest_gap:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--text", type=Path, default=ROOT / "LICENSE")
    parser.add_argument("--tokens", type=int, default=2048)
    asked = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for model in asked.models:
        for row in rows(model, asked.ways, asked.text.read_text(), asked.tokens, cache_dir()):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
