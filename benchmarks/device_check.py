"""Runs the attention kernels on the GPU or TPU that is here: first their numbers, then their speed. Under five minutes.

    python -m benchmarks.device_check

Numbers: the ragged cases of the tests against the plain reference, in float32 and bfloat16. Speed: decode attention of
64 rows at a context of 2,048, as a share of the device's measured copy bandwidth, and beside jax.nn's attention on keys
and values that lie densely (on NVIDIA cards cuDNN's). Ends with exit code 1 if a case differs.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from xlaserve_kernels.arg_specs import ATTENTION
from xlaserve_kernels.backend import resolve
from xlaserve_kernels.bench import CALLS, OPS, Runner

from tests.kernels.ragged import assert_close
from tests.kernels.test_paged_attention import cases_of

MODELS = ("llama-3.1-8b", "llama-3.1-8b, int8 KV", "llama-3.3-70b at TP 8", "gpt-oss-20b sliding", "smollm2-135m")
ROWS, CONTEXT, REPEATS = 64, 2048, 20
COPIED = 2**29  # bytes


def check_numbers(backend: str) -> int:
    """Prints each case that differs; returns how many."""
    failed = 0
    cases = cases_of(backend)
    for dtype in (jnp.float32, jnp.bfloat16):
        for name, case in cases.items():
            try:
                assert_close(case, backend, dtype)
            except Exception as error:  # a compiler's, too: the other cases tell more
                failed += 1
                print(f"{name}, {jnp.dtype(dtype).name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    print(f"{2 * len(cases) - failed} of {2 * len(cases)} cases agree with the reference\n", flush=True)
    return failed


def median_seconds(function, *arguments) -> float:
    """Of one call, as Runner.seconds has it."""
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready([function(*arguments) for _ in range(CALLS)])
        taken.append((time.perf_counter() - start) / CALLS)
    return statistics.median(taken)


def copy_bandwidth() -> float:
    """Bytes read and written in a second."""
    numbers = jnp.zeros(COPIED // 4, jnp.float32)
    return 2 * COPIED / median_seconds(jax.jit(lambda x: x + 1), numbers)


def dense_seconds(shape) -> float | str:
    """jax.nn's attention of the same queries on dense keys and values; or why it cannot be."""
    if shape.kv_dtype != "bfloat16" or shape.sinks:
        return "-"  # it has neither
    q = jnp.ones((ROWS, 1, shape.num_heads, shape.head_dim), jnp.bfloat16)
    k, v = (jnp.full((ROWS, CONTEXT, shape.num_kv_heads, shape.head_dim), x, jnp.bfloat16) for x in (1, 2))
    on_nvidia = "nvidia" in jax.devices()[0].device_kind.lower()
    window = None if shape.sliding_window is None else (shape.sliding_window - 1, 0)

    def attend(q, k, v):
        return jax.nn.dot_product_attention(
            q, k, v, local_window_size=window, implementation="cudnn" if on_nvidia else "xla"
        )

    return median_seconds(jax.jit(attend), q, k, v)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", help="as attention_backend: the device's kernel, or xla")
    options = parser.parse_args()
    device = jax.devices()[0]
    backend = resolve(options.backend, device.platform)
    print(f"{device.device_kind}, jax {jax.__version__}, {backend}\n", flush=True)
    failed = check_numbers(backend)

    copied = copy_bandwidth()
    cases = dict(OPS["paged_attention"][0]())
    print(f"copy: {copied / 1e9:.0f} GB/s; decodes of {ROWS} rows at {CONTEXT} tokens, median of {REPEATS}\n")
    print("| model | us | GB/s | of copy | dense, us | dense / ours |\n|---|---|---|---|---|---|")
    for model in MODELS:
        runner = Runner(cases[f"{model}; decode, 64 rows"], backend)
        seconds = statistics.median(runner.seconds() for _ in range(REPEATS))
        rate, dense = runner.least_bytes / seconds, dense_seconds(ATTENTION[model])
        other = f"{dense * 1e6:.0f} | {dense / seconds:.2f}" if isinstance(dense, float) else f"{dense} | -"
        print(f"| {model} | {seconds * 1e6:.0f} | {rate / 1e9:.0f} | {rate / copied:.0%} | {other} |", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
