"""The peer: transformers' `model.generate` on the CPU, a batch of c prompts of equal length, greedy.

    python -m benchmarks.transformers_generate [demo | FOLDER | FILE.gguf] [--dtypes bfloat16 float32]

The prompts are those of benchmarks/load.py: 128 words in, 64 tokens out. Prints one JSON line per dtype and c: the
median output tokens/s of three batches. Needs the extra `record` (torch, accelerate).
"""
# pyright: reportMissingImports=false
# torch is what we compare with, not what we need: `make lint` does not install it.

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from benchmarks.load import Load
from xlaserve.cli.options import cache_dir
from xlaserve.models.sources import fetch

BATCHES = 3
CONCURRENCY = (1, 8, 16)


def load_model(path: Path, dtype: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a Hugging Face folder or of a GGUF file, whose weights are dequantised."""
    options: dict[str, Any] = {}
    if path.is_file():
        options["gguf_file"] = path.name
    folder = path.parent if path.is_file() else path
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, **options)
    if path.is_file():
        options["quantization_config"] = hf.GgufConfig(dequantize=True)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **options).eval()
    model.generation_config = hf.GenerationConfig(do_sample=False, pad_token_id=0)  # no end-of-text: all 64 tokens
    return model, tokenizer


def token_batches(tokenizer: Any, load: Load, size: int) -> Iterator[Any]:
    """Batches [size, T] of the load's prompts, cut to the shortest of them."""
    ids = [tokenizer(prompt)["input_ids"] for prompt, _ in load.jobs()]
    length = min(map(len, ids))
    for start in range(0, len(ids) - size + 1, size):
        yield torch.tensor([row[:length] for row in ids[start : start + size]])


def tokens_per_second(model: Any, batch: Any, num_tokens: int) -> float:
    start = time.perf_counter()
    output = model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=num_tokens)
    seconds = time.perf_counter() - start
    assert output.shape == (len(batch), batch.shape[1] + num_tokens)
    return len(batch) * num_tokens / seconds


def measure(model: Any, tokenizer: Any, concurrency: int) -> float:
    """Median output tokens/s."""
    load = Load(num_requests=BATCHES * concurrency, concurrency=concurrency)
    batches = list(token_batches(tokenizer, load, concurrency))
    tokens_per_second(model, batches[0], 4)  # warm up
    return statistics.median(tokens_per_second(model, batch, load.max_tokens) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help="demo, a Hugging Face folder or a GGUF file")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    args = parser.parse_args()
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    path = fetch(args.model, cache_dir=cache_dir())
    for dtype in args.dtypes:
        model, tokenizer = load_model(path, dtype)
        for concurrency in CONCURRENCY:
            rate = measure(model, tokenizer, concurrency)
            print(json.dumps({"dtype": dtype, "concurrency": concurrency, "tokens_per_s": round(rate, 1)}), flush=True)


if __name__ == "__main__":
    main()
