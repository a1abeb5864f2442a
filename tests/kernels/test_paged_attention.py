"""Paged attention against the plain reference, over ragged batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xlaserve_kernels.backend import resolve
from xlaserve_kernels.paged_attention import make_layout

from tests.kernels.conftest import needs_native
from tests.kernels.ragged import Case, assert_close, run


def named_cases(block: int) -> dict[str, Case]:
    """Cases for blocks of `block` tokens, where they do not say otherwise."""
    edges = (1, block - 1, block, block + 1, 2 * block, 2 * block + 1)
    cases = {
        "decodes at every edge": Case(tuple((1, n) for n in edges)),
        "whole prompts at every edge": Case(tuple((n, n) for n in edges)),
        "chunks at every edge": Case(tuple((n, n + 7) for n in edges)),
        "idle rows around live ones": Case(((0, 0), (1, 5), (0, 0), (6, 9), (0, 0))),
        "all rows idle": Case(((0, 0), (0, 0)), padding=4),
        "padding behind the rows": Case(((1, 5), (3, 3)), padding=12),
        "one huge row beside short ones": Case(((1, 1000), (1, 2), (1, 1), (1, 3))),
        "a huge prompt beside decodes": Case(((200, 300), (1, 2), (1, 17), (1, 16))),
        "one head": Case(((3, 9), (1, 4)), num_heads=1, num_kv_heads=1),
        "a group of three": Case(((3, 9), (1, 40)), num_heads=9, num_kv_heads=3),
        "a group of sixteen": Case(((3, 9), (1, 40)), num_heads=16, num_kv_heads=1),
        "heads of more than half a register": Case(((3, 9), (1, 40)), head_dim=80),
        "heads of two registers": Case(((3, 9), (1, 40)), head_dim=256),
        "window of one": Case(((5, 30), (1, 9), (1, 1)), sliding_window=1),
        "window cutting chunks": Case(((40, 300), (1, 129), (1, 128), (1, 500)), sliding_window=130),
        "window larger than all": Case(((5, 30), (1, 9)), sliding_window=1000),
        "soft cap": Case(((5, 30), (1, 9)), soft_cap=2.0),
        "soft cap and window": Case(((5, 30), (1, 9)), soft_cap=2.0, sliding_window=4),
        "sinks": Case(((5, 30), (1, 9), (1, 1), (0, 0)), num_heads=9, num_kv_heads=3, padding=3, sinks=True),
        "sinks, soft cap and window": Case(((5, 30), (1, 9)), soft_cap=2.0, sliding_window=4, sinks=True),
    }
    quantized = {
        "edges": Case(tuple((n, n + 7) for n in edges)),
        "window, soft cap and sinks": Case(((5, 30), (1, 9)), soft_cap=2.0, sliding_window=4, sinks=True),
        "one huge row": Case(((1, 1000), (1, 2), (3, 3)), num_heads=9, num_kv_heads=3),
        "more heads than a register has scales": Case(((5, 30), (1, 9)), num_heads=16, num_kv_heads=16, head_dim=80),
    }
    for dtype in ("int8", "float8_e4m3fn"):
        cases |= {f"{dtype}, {name}": dataclasses.replace(case, kv_dtype=dtype) for name, case in quantized.items()}
    return {name: dataclasses.replace(case, block_size=block) for name, case in cases.items()}


BLOCKS_OF_OTHER_SIZES = {
    "blocks of one token": Case(((3, 9), (1, 40)), block_size=1),
    "blocks longer than a chunk": Case(((3, 9), (1, 400), (150, 400)), block_size=256),
}
NAMED = named_cases(4) | BLOCKS_OF_OTHER_SIZES
ON_TPU = named_cases(8) | {  # blocks of a multiple of 8 tokens, 128 at most
    "blocks of 24 tokens": Case(((3, 9), (1, 400), (150, 400)), block_size=24),
    "the longest blocks": Case(((3, 9), (1, 400), (150, 400)), block_size=128),
    "more blocks than a page of the table holds": Case(((1, 1100), (20, 1030), (1, 2)), block_size=8),
}


def cases_of(backend: str) -> dict[str, Case]:
    return ON_TPU if backend.startswith("pallas_tpu") else NAMED


MARKS = {"cpu_native": needs_native}
NAMES = ("xla", "cpu_native", "pallas_tpu_interpret", "pallas_gpu_interpret")
BACKENDS = [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES]
ALL_NAMED = [(backend, name) for backend in NAMES for name in cases_of(backend)]


@pytest.mark.parametrize(("backend", "name"), [pytest.param(*case, marks=MARKS.get(case[0], ())) for case in ALL_NAMED])
def test_named_cases(backend, name):
    assert_close(cases_of(backend)[name], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name",
    [
        *("one huge row beside short ones", "a huge prompt beside decodes", "soft cap and window"),
        *("int8, one huge row", "float8_e4m3fn, window, soft cap and sinks"),
    ],
)
def test_bfloat16(name, backend):
    assert_close(cases_of(backend)[name], backend, jnp.bfloat16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(jnp.float32, "bfloat16"), (jnp.bfloat16, "float32"), (jnp.float16, "int8")],
)
def test_a_pool_of_another_dtype(dtype, kv_dtype, backend):
    case = dataclasses.replace(cases_of(backend)["a group of three"], kv_dtype=kv_dtype)
    assert_close(case, backend, dtype)


@pytest.mark.parametrize(
    ("backend", "block_size", "allowed"),
    [
        ("pallas_gpu", 24, "with pallas_gpu it must be a power of two"),
        ("pallas_tpu", 4, "on TPUs it must be a multiple of 8"),
        ("pallas_tpu", 256, "on TPUs it must be a multiple of 8, 128 at most"),
    ],
)
def test_a_block_size_that_a_kernel_cannot_take(backend, block_size, allowed):
    with pytest.raises(ValueError, match=f"block_size {block_size}: {allowed}"):
        make_layout(backend, num_kv_heads=1, head_dim=64, block_size=block_size, dtype="bfloat16")


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", [None, "int8"])
def test_infinity_in_one_row_spoils_no_other(kv_dtype, backend):
    case = Case(((1, 600), (1, 600), (1, 5)), num_kv_heads=1, block_size=16, spoilt=True, kv_dtype=kv_dtype)
    out, expected = run(case, backend)
    assert not np.isfinite(out[0]).any()
    np.testing.assert_allclose(out[1:], expected[1:], atol=1e-5 * np.abs(expected[1:]).max())


# Compiled once each: (num_heads, num_kv_heads, block_size, sliding_window, soft_cap, tokens, sinks, kv_dtype)
PROGRAMS = (
    (3, 3, 4, None, None, 200, False, None),
    (9, 3, 16, None, 5.0, 200, False, None),
    (4, 1, 8, 8, None, 200, False, None),
    (8, 2, 4, 100, 5.0, 200, False, None),
    (6, 2, 16, None, None, 5, False, None),
    (4, 2, 16, 1, None, 5, False, None),
    (9, 3, 16, 20, 5.0, 200, True, "int8"),
    (6, 2, 8, None, None, 200, False, "float8_e4m3fn"),
    (6, 2, 16, None, None, 5, True, "int8"),
)


@st.composite
def cases(draw, multiple_of: int = 1):
    heads, kv_heads, block_size, window, soft_cap, num_tokens, sinks, kv_dtype = draw(st.sampled_from(PROGRAMS))
    block_size = -(-block_size // multiple_of) * multiple_of
    longest = num_tokens // 5
    rows = draw(st.lists(st.tuples(st.integers(0, longest), st.integers(0, 160)), min_size=5, max_size=5))
    return Case(
        rows=tuple((q, q + past) if q else (0, 0) for q, past in rows),
        num_heads=heads,
        num_kv_heads=kv_heads,
        block_size=block_size,
        num_tokens=num_tokens,
        table_width=-(-200 // block_size),
        sliding_window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        kv_dtype=kv_dtype,
        seed=draw(st.integers(0, 9)),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=cases())
def test_random_cases(case):
    assert_close(case, "xla")


@needs_native
@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=cases())
def test_random_cases_in_native_code(case):
    assert_close(case, "cpu_native")


@settings(max_examples=15, deadline=None, derandomize=True)  # seconds each to compile
@given(case=cases())
def test_random_cases_interpreted_for_gpus(case):
    assert_close(case, "pallas_gpu_interpret")


@settings(max_examples=15, deadline=None, derandomize=True)
@given(case=cases(multiple_of=8))
def test_random_cases_interpreted_for_tpus(case):
    assert_close(case, "pallas_tpu_interpret")


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_tokens_of_no_row_come_back_as_zeros(backend):
    out, _ = run(Case(((1, 5), (3, 3)), padding=12), backend)
    np.testing.assert_array_equal(out[4:], 0)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_writes_beyond_the_pool_are_dropped(dtype):
    layout = make_layout("xla", num_kv_heads=1, head_dim=2, block_size=4, dtype=dtype)
    pool = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), layout.pool_spec(3))
    ones = jnp.ones((2, 1, 2))
    written = layout.write(pool, ones, ones, jnp.array([3 * 4, 2**30], jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, written, pool)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
def test_a_write_copies_no_pool(dtype):
    layout = make_layout("xla", num_kv_heads=2, head_dim=64, block_size=16, dtype=dtype)
    pool, new = layout.pool_spec(1000), jax.ShapeDtypeStruct((8, 2, 64), jnp.float32)
    write = jax.jit(layout.write, donate_argnums=0)
    memory = write.lower(pool, new, new, jax.ShapeDtypeStruct((8,), jnp.int32)).compile().memory_analysis()
    assert memory.alias_size_in_bytes == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pool))
    assert memory.temp_size_in_bytes < memory.alias_size_in_bytes / 100


def test_backends_are_chosen_by_name():
    assert resolve("xla", "tpu") == "xla"
    assert resolve("auto", "gpu") == "pallas_gpu"
    assert resolve("auto", "tpu") == "pallas_tpu"
    assert resolve("pallas_gpu", "gpu") == "pallas_gpu"
    with pytest.raises(
        ValueError,
        match=r"'pallas_gpu' is not available on cpu: choose auto, xla, .*pallas_tpu_interpret, pallas_gpu_interpret",
    ):
        resolve("pallas_gpu", "cpu")
    with pytest.raises(ValueError, match=r"'cuda_magic'.*choose auto, xla"):
        resolve("cuda_magic", "cpu")
