"""The peer OpenVINO GenAI on a GGUF file, offline, in batches of prompts as benchmarks/load.py sends them.

    pip install openvino-genai gguf aiohttp      # in an environment of its own
    python -m benchmarks.openvino_generate FILE.gguf [--batches 1 8 16] [--rounds 3]

Its weights become Q8_0, int8 with a scale for each 32, if they are not: OpenVINO reads that and 4 bits. Greedy, 128
words in, 64 tokens out, without its prefix cache. Prints a line when it is ready, then one of JSON per batch size and
round. `benchmarks.offline_generate` does the same with xlaserve.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

from benchmarks.load import Load

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def is_q8_0(file: Path) -> bool:
    """Whether all matrices are."""
    return all(tensor.tensor_type == Q8_0 for tensor in gguf.GGUFReader(file).tensors if len(tensor.shape) == 2)


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


def measure(file: Path, batches: list[int], rounds: int) -> None:
    import openvino_genai as genai  # pyright: ignore[reportMissingImports]

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = 2, max(batches), False
    pipeline = genai.LLMPipeline(str(file), "CPU", scheduler_config=scheduler)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = Load.max_tokens, True, False
    pipeline.generate(["warm up"], config)
    print("{}", flush=True)
    for batch in batches:
        for number in range(rounds):
            prompts = [prompt for prompt, _ in Load(num_requests=batch, seed=number).jobs()]
            start = time.perf_counter()
            result = pipeline.generate(prompts, config)
            speed = batch * Load.max_tokens / (time.perf_counter() - start)
            ttft = result.perf_metrics.get_ttft().mean
            print(json.dumps({"batch": batch, "tokens_per_s": round(speed, 1), "ttft_ms": round(ttft, 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = args.file
        if not is_q8_0(file):
            file = Path(folder) / "q8_0.gguf"
            requantize(args.file, file)
        measure(file, args.batches, args.rounds)


if __name__ == "__main__":
    main()
