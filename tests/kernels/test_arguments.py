"""What paged attention refuses, and what it says of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.paged_attention import KVPool, check_tables, make_layout, paged_attention


def layout_of(dtype="float32"):
    return make_layout("xla", num_kv_heads=2, head_dim=8, block_size=16, dtype=dtype)


def attend(dtype="float32", **arrays):
    """With good arguments but for `arrays`."""
    layout = layout_of(dtype)
    pool = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), layout.pool_spec(3))
    integers = dict(block_tables=(2, 2), query_start_loc=(3,), seq_lens=(2,))
    good = dict(q=jnp.zeros((4, 4, 8)), kv_pool=pool) | {k: jnp.zeros(v, jnp.int32) for k, v in integers.items()}
    return paged_attention(**good | arrays, backend="xla", layout=layout, scale=1.0)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("q", (4, 4)), ("q", (4, 4, 16)), ("q", (4, 3, 8)), ("block_tables", (2,)), ("query_start_loc", (2,)),
        ("seq_lens", (3,)), ("sinks", (3,)),
    ],
)  # fmt: skip
def test_a_wrong_shape_is_named(name, shape):
    array = jnp.zeros(shape, jnp.float32 if name in ("q", "sinks") else jnp.int32)
    with pytest.raises(ValueError, match=rf"{name} has shape .*must be"):
        attend(**{name: array})


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("block_tables", jnp.zeros((2, 2)), "block_tables has dtype float32: must be int32"),
        ("q", jnp.zeros((4, 4, 8), jnp.int8), "q has dtype int8: must be float32 or bfloat16 or float16"),
        ("sinks", jnp.zeros(4, jnp.bfloat16), "sinks has dtype bfloat16: must be float32"),
        ("kv_pool", jnp.zeros((3, 2, 2, 16, 8)), "kv_pool is a ArrayImpl: must be a KVPool"),
        ("kv_pool", KVPool(jnp.zeros((3, 2, 1, 16, 8)), None), r"kv_pool.pages has shape \[3, 2, 1, 16, 8\]: must be"),
        (
            "kv_pool",
            KVPool(jnp.zeros((3, 2, 2, 16, 8), jnp.int8), None),
            "kv_pool.pages has dtype int8: must be float32",
        ),
        ("kv_pool", layout_of("int8").pool_spec(3), "kv_pool.pages has dtype int8: must be float32"),
    ],
)
def test_a_wrong_dtype_or_pool_is_named(name, array, message):
    with pytest.raises(ValueError, match=message):
        attend(**{name: array})


def test_scales_are_there_if_the_pool_is_quantised():
    pages, scales = (jnp.ones(x.shape, x.dtype) for x in layout_of("int8").pool_spec(3))
    with pytest.raises(ValueError, match=r"kv_pool.scales are missing: a pool of int8 has them"):
        attend("int8", kv_pool=KVPool(pages, None))
    with pytest.raises(ValueError, match=r"kv_pool.scales are given: a pool of float32 has none"):
        attend(kv_pool=KVPool(pages.astype(jnp.float32), scales))
    with pytest.raises(ValueError, match=r"kv_pool.scales has shape \[3, 2, 2, 8\]: must be \[num_blocks, 2, 2, 16\]"):
        attend("int8", kv_pool=KVPool(pages, scales[..., :8]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(block_size=24), "block_size 24: with pallas_gpu it must be a power of two"),
        (dict(block_size=0), "block_size 0: must be at least 1"),
        (dict(num_kv_heads=0), "num_kv_heads 0, .*must be at least 1"),
        (dict(head_dim=0), r"head_dim 0: must be in \[1, 256\]"),
        (dict(head_dim=257), r"head_dim 257: must be in \[1, 256\]"),
        (dict(dtype="uint8"), "dtype uint8: a KV pool holds float32, bfloat16, float16, int8, float8_e4m3fn"),
        (dict(dtype=jnp.int4), "dtype int4: a KV pool holds"),
        (dict(dtype=jnp.float8_e5m2), "dtype float8_e5m2: a KV pool holds"),
    ],
)
def test_a_pool_that_cannot_be(arguments, message):
    good = dict(num_kv_heads=1, head_dim=64, block_size=16, dtype="bfloat16")
    with pytest.raises(ValueError, match=message):
        make_layout("pallas_gpu", **good | arguments)


TABLES = dict(  # an idle row, one of 20 tokens with a query, one of 5 with 5; 99 stands where nothing looks
    block_tables=np.array([[99, 99], [3, 4], [1, 99]], np.int32),
    query_start_loc=np.array([0, 0, 1, 6], np.int32),
    seq_lens=np.array([0, 20, 5], np.int32),
)
WRONG = [
    ("block_tables", (1, 1), 64, r"block_tables, row 1, column 1: 64, must be in \[0, 63\]"),
    ("block_tables", (2, 0), -1, r"block_tables, row 2, column 0: -1, must be in \[0, 63\]"),
    ("seq_lens", 1, 33, r"seq_lens, row 1: 33, must be in \[0, 32\], as its table holds 2 blocks of 16"),
    ("seq_lens", 2, 4, r"seq_lens, row 2: 4, must be in \[5, 32\], as the row has 5 queries"),
    ("query_start_loc", 3, 9, r"query_start_loc, row 3: 9, must be in \[0, 8\], as the batch has 8 tokens"),
    ("query_start_loc", 0, -1, r"query_start_loc, row 0: -1, must be in \[0, 8\]"),
    ("query_start_loc", 2, 7, r"query_start_loc, row 2: it ends at 6, must be in \[7, 8\]"),
]


def tables_but(name: str, place, value: int) -> dict[str, np.ndarray]:
    tables = {key: array.copy() for key, array in TABLES.items()}
    tables[name][place] = value
    return tables


@pytest.mark.parametrize(("name", "place", "value", "message"), WRONG)
def test_tables_are_checked(name, place, value, message):
    sizes = dict(num_blocks=64, block_size=16, num_tokens=8)
    check_tables(**TABLES, **sizes)
    with pytest.raises(ValueError, match=message):
        check_tables(**tables_but(name, place, value), **sizes)


@pytest.mark.parametrize("jitted", [False, True])
def test_debug_checks_the_tables(jitted):
    layout = layout_of()
    pool = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), layout.pool_spec(64))
    call = functools.partial(paged_attention, backend="xla", layout=layout, scale=1.0, debug=True)
    call = jax.jit(call) if jitted else call
    q = jnp.ones((8, 4, 8))
    np.testing.assert_allclose(call(q, pool, **TABLES)[:6], 1, rtol=1e-6)
    wrong = tables_but("block_tables", (1, 1), 64)
    errors = (ValueError, jax.errors.JaxRuntimeError) if jitted else ValueError  # jax's choice depends on the platform
    with pytest.raises(errors, match="block_tables, row 1, column 1: 64"):
        call(q, pool, **wrong).block_until_ready()
