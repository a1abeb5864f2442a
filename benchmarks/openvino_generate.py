"""The peer OpenVINO GenAI on a GGUF file, offline, in batches of prompts as benchmarks/load.py sends them.

    pip install openvino-genai gguf aiohttp      # in an environment of its own
    python -m benchmarks.openvino_generate FILE.gguf

Its weights become Q8_0, int8 with a scale for each 32, whatever the file has: OpenVINO reads that and 4 bits. Greedy,
128 words in, 64 tokens out, without its prefix cache. Prints one JSON line per batch size and round.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

from benchmarks.load import WORDS

BATCHES = (1, 8, 16)
ROUNDS = 3
NUM_TOKENS = 64
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def requantize(source: Path, target: Path) -> None:
    """Writes `source` with its matrices in Q8_0 and its vectors in float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        elif name != "general.architecture" and not name.startswith("GGUF."):
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        if values.ndim == 2:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, Q8_0), raw_dtype=Q8_0)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(file: Path) -> None:
    import openvino_genai as genai  # pyright: ignore[reportMissingImports]

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = 2, max(BATCHES), False
    pipeline = genai.LLMPipeline(str(file), "CPU", scheduler_config=scheduler)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = NUM_TOKENS, True, False
    pipeline.generate(["warm up"], config)
    rng = random.Random(0)
    for batch in BATCHES:
        for _ in range(ROUNDS):
            prompts = [" ".join(rng.choice(WORDS) for _ in range(128)) for _ in range(batch)]
            start = time.perf_counter()
            result = pipeline.generate(prompts, config)
            speed = batch * NUM_TOKENS / (time.perf_counter() - start)
            ttft = result.perf_metrics.get_ttft().mean
            print(json.dumps({"batch": batch, "tokens_per_s": round(speed, 1), "ttft_ms": round(ttft, 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        requantized = Path(folder) / "q8_0.gguf"
        requantize(parser.parse_args().file, requantized)
        measure(requantized)


if __name__ == "__main__":
    main()
