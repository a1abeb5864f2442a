"""Does a decode step cost what its live tokens predict, also when one row is far longer than the others?

    python -m benchmarks.mixed_lengths [--dtype float32 | bfloat16]

Fits step time = a + b x live tokens to batches of 16 equal rows, and compares 15 rows of 200 tokens beside one of 4,000
with what the fit predicts. The KV pool holds zeros: what it holds does not change the time. Prints one JSON line; exits
with 1 when the measured time is more than 1.5 times the predicted one.
"""

import argparse
import json
import statistics
import sys
import time

import jax
import numpy as np
from xlaserve_kernels import backend as kernel_backend

from xlaserve.cli.options import cache_dir
from xlaserve.models.config import parse_config
from xlaserve.models.gguf_file import GGUFFile
from xlaserve.models.loader import load_params
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.models.sources import fetch
from xlaserve.runner.buckets import make_buckets
from xlaserve.runner.commands import Body, ResetRow, RowTokens, Sample, SampleRow
from xlaserve.runner.compilations import use_persistent_cache
from xlaserve.runner.dtype import choose_dtype
from xlaserve.runner.model_runner import ModelRunner
from xlaserve.runner.programs import ProgramShapes, compile_programs
from xlaserve.sharding import make_mesh, replicated, sharding_of

ROWS = 16
BLOCK_SIZE = 16
LONGEST = 4_000
UNIFORM = (200, 400, 800)  # tokens of each row
MIXED = [200] * (ROWS - 1) + [LONGEST]
MAX_RATIO = 1.5
WARM_UP, STEPS, ROUNDS = 2, 5, 4


def make_runner(dtype_name: str) -> tuple[ModelRunner, str]:
    """A runner of the demo model that decodes ROWS rows, and the name of its dtype."""
    use_persistent_cache(cache_dir() / "programs")
    path = fetch("demo", cache_dir=cache_dir())
    checkpoint = GGUFFile(path)
    config = parse_config(checkpoint.config, str(path))
    mesh = make_mesh()
    platform = mesh.devices.flat[0].platform
    dtype, _ = choose_dtype(dtype_name, config, platform)
    backend = kernel_backend.resolve("auto", platform)
    shapes = ProgramShapes(
        config=config,
        buckets=make_buckets(ROWS, ROWS),
        max_num_seqs=ROWS,
        table_width=_blocks(LONGEST),
        block_size=BLOCK_SIZE,
        num_blocks=(1 + max(ROWS * _blocks(max(UNIFORM)), sum(map(_blocks, MIXED))),),
        backend=backend,
        dtype=dtype,
        kv_dtype=dtype,
    )
    specs = FAMILIES[config.family].param_specs(config)
    params = load_params(
        specs,
        checkpoint,
        dtype=dtype,
        place=lambda array, spec: jax.device_put(array, sharding_of(mesh, spec.axes)),
        on_progress=lambda *_: None,
    )
    programs = compile_programs(shapes, params, head_weight(params), replicated(mesh), lambda *_: None)
    return ModelRunner(params, shapes, replicated(mesh), programs), dtype.name


def _blocks(num_tokens: int) -> int:
    """Enough for a row of `num_tokens` and the tokens of all steps."""
    return -(-(num_tokens + WARM_UP + STEPS) // BLOCK_SIZE)


def step_seconds(runner: ModelRunner, lengths: list[int]) -> list[float]:
    """Greedy decode steps of rows that are `lengths` long."""
    block = 1
    for row, length in enumerate(lengths):
        table = tuple(range(block, block + _blocks(length)))
        block += len(table)
        runner.execute(ResetRow(row, (table,), temperature=0.0, top_k=0, top_p=1.0, seed=0))
    rows = range(len(lengths))
    seconds = []
    for step in range(WARM_UP + STEPS):
        start = time.perf_counter()
        tokens = tuple(RowTokens(row, lengths[row] + step, 1, None) for row in rows)
        runner.execute(Body(tokens, (), outputs=tuple(rows)))
        future = runner.execute(Sample(tuple(SampleRow(row, row, lengths[row] + step) for row in rows), False))
        assert future is not None
        future.result()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def median_ms(runner: ModelRunner, cases: list[list[int]]) -> list[float]:
    """The median step of each case; they take turns, so that all of them see the same machine."""
    seconds: list[list[float]] = [[] for _ in cases]
    for _ in range(ROUNDS):
        for lengths, found in zip(cases, seconds, strict=True):
            found += step_seconds(runner, lengths)
    return [1e3 * statistics.median(found) for found in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    runner, dtype = make_runner(parser.parse_args().dtype)
    *medians, mixed = median_ms(runner, [*([length] * ROWS for length in UNIFORM), MIXED])
    uniform = dict(zip(UNIFORM, medians, strict=True))
    slope, constant = np.polyfit([ROWS * length for length in uniform], list(uniform.values()), 1)
    predicted = constant + slope * sum(MIXED)
    result = {
        "benchmark": "mixed_lengths",
        "dtype": dtype,
        "step_ms": {f"{ROWS}x{length}": round(ms, 1) for length, ms in uniform.items()},
        "fit_ms": {"constant": round(constant, 2), "per_1000_live_tokens": round(1000 * slope, 2)},
        f"{ROWS - 1}x200+1x{LONGEST}": {"measured_ms": round(mixed, 1), "predicted_ms": round(predicted, 1)},
        "ratio": round(mixed / predicted, 2),
    }
    print(json.dumps(result))
    sys.exit(mixed > MAX_RATIO * predicted)


if __name__ == "__main__":
    main()
