"""The traffic derived for the kernels is what the interpreted ones load and store."""

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from xlaserve_kernels.arg_specs import ATTENTION
from xlaserve_kernels.paged_attention import make_layout
from xlaserve_kernels.paged_attention.traffic import attention_traffic, live_block_bytes

from tests.kernels.counting import Counter, count_loads_and_stores
from tests.kernels.ragged import Case, run

CASES = {
    "decodes": Case(((1, 40), (1, 1), (0, 0), (1, 17), (1, 200)), block_size=16, head_dim=16),
    "chunks beside decodes": Case(((70, 90), (1, 17), (0, 0)), block_size=8, num_heads=6, num_kv_heads=2, padding=3),
    "window": Case(((1, 200), (40, 100)), block_size=8, sliding_window=20),
    "int8": Case(((1, 40), (3, 17)), block_size=16, kv_dtype="int8"),
}


def derived(case: Case, backend: str):
    query_lens, seq_lens = np.array(case.rows).T
    layout = make_layout(
        backend, num_kv_heads=case.num_kv_heads, head_dim=case.head_dim, block_size=case.block_size,
        dtype=case.kv_dtype or "float32",
    )  # fmt: skip
    return attention_traffic(
        layout, query_lens, seq_lens, num_tokens=int(query_lens.sum()) + case.padding, num_heads=case.num_heads,
        q_dtype="float32", sliding_window=case.sliding_window, interpret=True,
    )  # fmt: skip


@pytest.mark.usefixtures("uncached")
@pytest.mark.parametrize("name", CASES)
def test_copies_of_the_tpu_kernel(name, monkeypatch):
    counter, make = Counter(), pltpu.make_async_copy

    def counted(source, target, semaphore):
        copy = make(source, target, semaphore)
        part = "tables" if source.dtype == np.int32 else "pages"
        start = copy.start

        def count_and_start():
            counter.add(part, np.prod(source.shape), source.dtype.itemsize)
            start()

        copy.start = count_and_start
        return copy

    monkeypatch.setattr(pltpu, "make_async_copy", counted)
    run(CASES[name], "pallas_tpu_interpret")
    jax.effects_barrier()
    expected = derived(CASES[name], "pallas_tpu_interpret")
    assert counter.bytes == {"pages": expected.pages, "tables": expected.tables}


@pytest.mark.usefixtures("uncached")
@pytest.mark.parametrize("name", CASES)
def test_loads_and_stores_of_the_gpu_kernels(name, monkeypatch):
    case, counter = CASES[name], Counter()

    count_loads_and_stores(monkeypatch, counter)
    run(case, "pallas_gpu_interpret")
    jax.effects_barrier()
    assert counter.bytes == {"total": derived(case, "pallas_gpu_interpret").total}


@pytest.mark.parametrize("backend", ["pallas_tpu", "pallas_gpu"])
@pytest.mark.parametrize("model", ATTENTION)
def test_decodes_read_the_live_blocks_once(model, backend):
    """64 rows at contexts about 2,048, blocks of 16: at most a tenth beside those, the queries and the outputs.

    TPUs fetch 32 KiB and more at a time.
    """
    shape, seq_lens = ATTENTION[model], np.random.default_rng(0).integers(1024, 3072, 64)
    layout = shape.layout(backend)
    options = dict(num_tokens=64, num_heads=shape.num_heads, q_dtype="bfloat16", sliding_window=shape.sliding_window)
    traffic = attention_traffic(layout, np.ones(64, int), seq_lens, **options)
    beside = traffic.queries + traffic.outputs
    assert traffic.total - beside <= 1.1 * live_block_bytes(layout, seq_lens, shape.sliding_window)
    if backend == "pallas_tpu":
        assert traffic.fetch >= 32 * 1024
