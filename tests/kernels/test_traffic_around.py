"""The traffic derived for the kernels around attention is what the interpreted ones load and store."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.fused_norm import add_rms_norm
from xlaserve_kernels.gated_activation import gated_activation
from xlaserve_kernels.grouped_matmul import grouped_matmul
from xlaserve_kernels.kv_write import kv_write
from xlaserve_kernels.paged_attention import make_layout
from xlaserve_kernels.quantization import quantize_groups
from xlaserve_kernels.quantized_matmul import MODES, quantize_weight, quantized_matmul
from xlaserve_kernels.quantized_matmul.arg_specs import MATMULS, VARIANTS
from xlaserve_kernels.traffic import (
    add_rms_norm_traffic,
    gated_activation_traffic,
    grouped_matmul_traffic,
    kv_write_traffic,
    quantized_matmul_traffic,
)

from tests.kernels.counting import Counter, count_loads_and_stores, watch_blocks
from tests.kernels.ragged import full_of_nan
from tests.kernels.test_kv_write import CASES as WRITES
from tests.kernels.test_kv_write import Case as Write
from tests.kernels.test_kv_write import arrays as writes

uncached = pytest.mark.usefixtures("uncached")


def moved(monkeypatch, backend: str, function, *arguments, **options) -> int:
    """Bytes that the interpreted kernel moved."""
    if "tpu" in backend:
        blocks = watch_blocks(monkeypatch)
        function(*arguments, backend=f"{backend}_interpret", **options)
        return blocks.bytes
    counter = Counter()
    count_loads_and_stores(monkeypatch, counter)
    function(*arguments, backend=f"{backend}_interpret", **options)
    jax.effects_barrier()
    return counter.bytes["total"]


# (mode, group, tokens, inputs, outputs): ragged edges, an odd number of groups
PRODUCTS = [("w8a8", 64, 5, 192, 40), ("w8a8", None, 70, 200, 136), ("w4a16", 32, 5, 160, 40)]
# Several blocks of each axis; all inputs of the tokens in one block, of the weight in two.
MANY_BLOCKS = [("w8a16", None, 513, 2176, 1032), ("w8a8", 128, 16, 2176, 520)]


def check_product(monkeypatch, backend, mode, group, num_tokens, inputs, out, bias=True):
    x = jnp.ones((num_tokens, inputs))
    weight = quantize_weight(jnp.ones((out, inputs)), mode, group)
    scales, activations = None, MODES[mode].activations
    if activations is not None:
        x, scales = quantize_groups(x, activations, group)
    given = jnp.ones(out) if bias else None
    pair = x if scales is None else (x, scales)
    counted = moved(monkeypatch, backend, quantized_matmul, pair, weight, given, out_dtype=jnp.bfloat16)
    assert counted == quantized_matmul_traffic(x, scales, weight, given, jnp.bfloat16, backend=backend)


@uncached
@pytest.mark.parametrize("backend", ["pallas_tpu", "pallas_gpu"])
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_quantised_products(case, backend, monkeypatch):
    check_product(monkeypatch, backend, *case)


@uncached
@pytest.mark.parametrize("case", MANY_BLOCKS, ids=str)
def test_quantised_products_in_many_blocks(case, monkeypatch):
    check_product(monkeypatch, "pallas_tpu", *case, bias=False)


@uncached
@pytest.mark.parametrize("sizes", [(3, 0, 17, 1, 2), (0, 0, 0, 0, 0)], ids=str)
def test_grouped_products(sizes, monkeypatch):
    x, weights = jnp.ones((40, 72)), jnp.ones((5, 72, 136))
    counted = moved(monkeypatch, "pallas_gpu", grouped_matmul, x, weights, jnp.array(sizes, jnp.int32))
    assert counted == grouped_matmul_traffic(x, weights, np.array(sizes))


@uncached
@pytest.mark.parametrize("group", [None, 192, 64])
def test_norm(group, monkeypatch):
    x, weight = jnp.ones((7, 576), jnp.bfloat16), jnp.ones(576)
    counted = moved(monkeypatch, "pallas_gpu", add_rms_norm, x, x, weight, 1e-6, group)
    assert counted == add_rms_norm_traffic(x, weight, group)


@uncached
@pytest.mark.parametrize("backend", ["pallas_tpu", "pallas_gpu"])
@pytest.mark.parametrize("group", [None, 64])
def test_gate(group, backend, monkeypatch):
    x = jnp.ones((33, 2 * 2176), jnp.bfloat16)
    counted = moved(monkeypatch, backend, gated_activation, x, "silu", group)
    assert counted == gated_activation_traffic(x, group)


WRITTEN = {name: WRITES[name] for name in ("chunks at every edge", "idle rows and padding", "nothing at all", "int8")}
WRITTEN["one block"] = Write(((2, 5),), padding=3)


@uncached
@pytest.mark.parametrize("name", WRITTEN)
def test_kv_write(name, monkeypatch):
    case = WRITTEN[name]
    layout = make_layout(
        "pallas_tpu", num_kv_heads=case.num_kv_heads, head_dim=case.head_dim, block_size=case.block_size,
        dtype=case.kv_dtype,
    )  # fmt: skip
    keys, values, slots, starts = map(jnp.asarray, writes(case, 100))
    counted = moved(
        monkeypatch, "pallas_tpu", kv_write, full_of_nan(layout, 100), keys, values, slots, starts, layout=layout
    )
    query_lens, seq_lens = np.array(case.rows).T
    assert counted == kv_write_traffic(layout, query_lens, seq_lens, num_tokens=len(slots))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", MATMULS)
def test_decodes_read_weights_and_activations_once_on_tpus(model, variant):
    """64 rows. But for the padding of an odd number of 4-bit groups, and for activations above 2 MiB: those of
    Gemma 3 27B's down product are read 11 times."""
    _, (x, weight) = MATMULS[model].call(64, variant, "pallas_tpu")
    scales, activations = None, MODES[weight.mode].activations
    if activations is not None:
        quantized = functools.partial(quantize_groups, dtype=activations, group_size=weight.group_size)
        x, scales = jax.eval_shape(quantized, x)
    arrays = jax.tree.leaves((x, scales, weight))
    least = sum(part.size * part.dtype.itemsize for part in arrays) + 64 * weight.out_features * 2
    traffic = quantized_matmul_traffic(x, scales, weight, None, jnp.bfloat16, backend="pallas_tpu")
    assert least <= traffic <= (1.41 if x.size * x.dtype.itemsize > 2**21 else 1.03) * least
