"""Times the kernels on whatever device is here, at the shapes of real models.

    python -m xlaserve_kernels.bench --op paged_attention
    python -m xlaserve_kernels.bench --op quantized_matmul --shape "smollm2-135m down" --compare xla

A line per case: the median of `--repeats` runs of some calls each, and the rate at which the least bytes (each input
and output once; of attention the live blocks) would have been moved in that time: what fits into a cache may be read
from there. With `--compare` both backends take turns in one run.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from xlaserve_kernels import fused_norm, gated_activation, grouped_matmul, native, quantized_matmul
from xlaserve_kernels.arg_specs import ATTENTION, BATCHES, BLOCK_SIZE, AttentionShape
from xlaserve_kernels.backend import BACKENDS, available, resolve
from xlaserve_kernels.fused_norm.arg_specs import NORMS
from xlaserve_kernels.gated_activation.arg_specs import GATES
from xlaserve_kernels.grouped_matmul.arg_specs import GROUPED_MATMULS
from xlaserve_kernels.paged_attention.traffic import live_block_bytes
from xlaserve_kernels.quantized_matmul.arg_specs import MATMULS, VARIANTS

_CONTEXT = 2048  # tokens of a row, with its queries
_TOKENS = {"decode": 64, "mixed": 1024}
CALLS = 5  # in a row, so that the host's dispatch of the next overlaps with the last


@dataclass(frozen=True)
class Case:
    """`call(backend)` gives the function and its abstract arguments; `integers` those that cannot be drawn."""

    call: Callable[[str], tuple[Callable, list]]
    integers: Callable[[list], dict[int, np.ndarray]]
    donated: bool = False  # the first argument, which is also the result
    least: Callable[[str, list], int] | None = None  # bytes; None: of all arguments and results


def attention_cases() -> Iterator[tuple[str, Case]]:
    for model, shape in ATTENTION.items():
        for batch, (num_tokens, num_rows) in BATCHES.items():
            case = Case(
                lambda backend, shape=shape, sizes=(num_tokens, num_rows): shape.call(*sizes, backend),
                _tables_and_lengths,
                least=partial(_live_blocks, shape),
            )
            yield f"{model}; {batch}", case


def _tables_and_lengths(arguments: list) -> dict[int, np.ndarray]:
    """The first row has the queries that the others' decodes leave; all have the same context."""
    _, pool, tables, _, seq_lens, _ = arguments
    query_lens = np.ones(seq_lens.shape, np.int32)
    query_lens[0] += arguments[0].shape[0] - len(query_lens)
    blocks = 1 + np.random.default_rng(0).permutation(pool.pages.shape[0] - 1)[: np.prod(tables.shape)]
    return {
        2: blocks.reshape(tables.shape),
        3: np.concatenate([[0], np.cumsum(query_lens)]),
        4: np.full(seq_lens.shape, _CONTEXT),
    }


def _live_blocks(shape: AttentionShape, backend: str, arguments: list) -> int:
    seq_lens = np.full(arguments[4].shape, _CONTEXT)
    return live_block_bytes(shape.layout(backend), seq_lens, shape.sliding_window) + 2 * _bytes(arguments[0])


def write_cases() -> Iterator[tuple[str, Case]]:
    """A row per token, each in a block of its own."""
    for model, shape in ATTENTION.items():
        call = lambda backend, shape=shape: shape.write_call(*BATCHES["decode, 64 rows"], backend)  # noqa: E731
        yield f"{model}; decode, 64 rows", Case(call, _slots, donated=True, least=lambda _, a: 2 * _bytes(a[1:3]))


def _slots(arguments: list) -> dict[int, np.ndarray]:
    rows = np.arange(arguments[4].shape[0])
    return {3: rows[1:] * BLOCK_SIZE, 4: rows}


def other_cases(op: str) -> Iterator[tuple[str, Case]]:
    for step, tokens in _TOKENS.items():
        if op == "quantized_matmul":
            for model, shape in MATMULS.items():
                for variant in VARIANTS:
                    yield f"{model}, {variant}; {step}", Case(partial(_call, shape, tokens, variant), _none)
        elif op == "grouped_matmul":
            for model, shape in GROUPED_MATMULS.items():
                yield (
                    f"{model}; {step}",
                    Case(partial(_call, shape, tokens), _evenly),
                )
        else:
            for model, shape in (NORMS if op == "fused_norm" else GATES).items():
                yield f"{model}, int8; {step}", Case(partial(_call, shape, tokens, True), _none)


OPS: dict[str, tuple[Callable[[], Iterator[tuple[str, Case]]], tuple[str, ...]]] = {
    "paged_attention": (attention_cases, ()),
    "kv_write": (write_cases, ()),
    "quantized_matmul": (lambda: other_cases("quantized_matmul"), tuple(quantized_matmul.IMPLEMENTATIONS)),
    "grouped_matmul": (lambda: other_cases("grouped_matmul"), tuple(grouped_matmul.IMPLEMENTATIONS)),
    "fused_norm": (lambda: other_cases("fused_norm"), tuple(fused_norm.IMPLEMENTATIONS)),
    "gated_activation": (lambda: other_cases("gated_activation"), tuple(gated_activation.IMPLEMENTATIONS)),
}


class Runner:
    """One case on one backend, compiled, with arguments on the device."""

    def __init__(self, case: Case, backend: str):
        function, abstract = case.call(backend)
        self._donated = case.donated
        self._compiled = jax.jit(function, donate_argnums=0 if case.donated else ()).lower(*abstract).compile()
        given = case.integers(abstract)
        key = jax.random.key(0)
        self._arguments = [
            jnp.asarray(given[place], jnp.int32) if place in given else jax.tree.map(lambda x: _draw(key, x), argument)
            for place, argument in enumerate(abstract)
        ]
        out = jax.eval_shape(function, *abstract)
        self.least_bytes = case.least(backend, abstract) if case.least else _bytes(abstract) + _bytes(out)
        self.seconds()  # the first run may load code

    def seconds(self) -> float:
        """Of one call, on average."""
        out, start = None, time.perf_counter()
        for _ in range(CALLS):
            out = self._compiled(*self._arguments)
            if self._donated:
                self._arguments[0] = out
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / CALLS


def _draw(key, spec: jax.ShapeDtypeStruct):
    if jnp.issubdtype(spec.dtype, jnp.integer):
        return jax.random.randint(key, spec.shape, 0, 8, jnp.int32).astype(spec.dtype)
    return jax.random.normal(key, spec.shape, jnp.float32).astype(spec.dtype)


def _call(shape, tokens: int, *rest) -> tuple[Callable, list]:
    return shape.call(tokens, *rest)


def _none(arguments: list) -> dict[int, np.ndarray]:
    return {}


def _evenly(arguments: list) -> dict[int, np.ndarray]:
    """As many tokens for each expert as there can be."""
    x, weights, sizes = arguments
    return {2: np.full(sizes.shape, x.shape[0] // weights.shape[0])}


def _bytes(tree) -> int:
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", required=True, choices=OPS)
    parser.add_argument("--shape", default="", metavar="TEXT", help="only cases whose name has it")
    parser.add_argument("--backend", default="auto", help="as attention_backend: the device's kernel, or xla")
    parser.add_argument("--compare", metavar="BACKEND", help="measure this one beside it, in turns")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()

    platform = jax.devices()[0].platform
    cases, implemented = OPS[options.op]
    if platform == "cpu":
        with contextlib.suppress(native.NativeUnavailable):
            native.load(native.default_folder())
    backends = [resolve(name, platform, implemented or BACKENDS) for name in (options.backend, options.compare) if name]
    for name in backends:
        if implemented and name not in implemented:
            choices = [name for name in available(platform) if name in implemented]
            parser.error(f"{options.op} has no {name} backend: choose {', '.join(choices)}")
    chosen = [(name, case) for name, case in cases() if options.shape in name]
    if not chosen:
        parser.error(f"no case of {options.op} has {options.shape!r} in its name: {'; '.join(n for n, _ in cases())}")

    print(f"{options.op} on {jax.devices()[0].device_kind}, jax {jax.__version__}, median of {options.repeats}\n")
    columns = [f"{name} (us) | GB/s" for name in backends] + ["ratio"] * (len(backends) - 1)
    print(f"| case | {' | '.join(columns)} |\n|{'---|' * (1 + 2 * len(backends) + (len(backends) - 1))}", flush=True)
    for name, case in chosen:
        print(line(name, case, backends, options.repeats), flush=True)


def line(name: str, case: Case, backends: list[str], repeats: int) -> str:
    try:
        runners = [Runner(case, backend) for backend in backends]
    except ValueError as error:  # a backend may have less than the operation
        return f"| {name} | {error} |"
    times = [[] for _ in runners]
    for _ in range(repeats):
        for runner, taken in zip(runners, times, strict=True):
            taken.append(runner.seconds())
    medians = [statistics.median(taken) for taken in times]
    cells = [f"{m * 1e6:.0f} | {r.least_bytes / m / 1e9:.1f}" for m, r in zip(medians, runners, strict=True)]
    if len(medians) == 2:
        cells.append(f"{medians[1] / medians[0]:.2f}")
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
