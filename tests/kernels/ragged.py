"""Ragged paged-attention cases, shared by the tests of every backend: shuffled tables, NaN in every unused slot."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from xlaserve_kernels.paged_attention import KVPool, make_layout, paged_attention, slot_mapping
from xlaserve_kernels.paged_attention.merged_rows import LANES, MergedRowsLayout
from xlaserve_kernels.paged_attention.reference import paged_attention_reference
from xlaserve_kernels.quantization import LARGEST, quantize

_quantize = jax.jit(quantize, static_argnames="dtype")
_write = jax.jit(lambda layout, *arguments: layout.write(*arguments), static_argnums=0)
_attend = jax.jit(paged_attention, static_argnames=("backend", "layout", "scale", "sliding_window", "soft_cap"))


@dataclass(frozen=True)
class Case:
    """`rows`: (queries, context) of each row, (0, 0) for an idle one; `padding`: tokens beyond the last row's."""

    rows: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 4
    padding: int = 0
    num_tokens: int | None = None  # instead of `padding`: the whole length
    table_width: int | None = None  # None: as wide as the longest row needs
    sliding_window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    kv_dtype: str | None = None  # None: the queries'
    spoilt: bool = False  # infinity in the first row's first value
    seed: int = 0


def full_of_nan(layout, num_blocks: int) -> KVPool:
    """A pool whose every slot is NaN: in int8 by its scale."""
    pages, scales = layout.pool_spec(num_blocks)
    slot = -128 if layout.dtype == jnp.int8 else jnp.nan
    filled = jax.lax.bitcast_convert_type(jnp.full(pages.shape, slot, layout.dtype), pages.dtype)
    return KVPool(filled, None if scales is None else jnp.full(scales.shape, jnp.nan, scales.dtype))


@functools.partial(jax.jit, static_argnames=("layout", "num_blocks"))  # one compilation instead of ten
def filled(layout, num_blocks: int, keys: jax.Array, values: jax.Array, slots: jax.Array) -> KVPool:
    """A pool with `keys`, `values` [T, K, H] at `slots` [T], those beyond the pool dropped, and NaN elsewhere."""
    pool = full_of_nan(layout, num_blocks)
    if not isinstance(layout, MergedRowsLayout):
        return layout.write(pool, keys, values, slots)
    block, offset = slots // layout.block_size, slots % layout.block_size
    new = layout.merge(keys, values)
    rows = jnp.arange(new.pages.shape[1]) * layout.block_size + offset[:, None]
    pages, scales = pool.pages.at[block[:, None], rows].set(new.pages, mode="drop"), pool.scales
    if new.scales is not None:
        owner = jnp.arange(LANES) % layout.block_size == offset[:, None]  # [T, 128]
        everywhere = jnp.broadcast_to(block[:, None, None], new.scales.shape)
        places = jnp.where(owner[:, None], everywhere, num_blocks), *jnp.indices(new.scales.shape)[1:]
        scales = scales.at[places].set(new.scales, mode="drop")
    return KVPool(pages, scales)


def as_stored(x: jax.Array, dtype) -> np.ndarray:
    """Keys or values [..., H] as the pool gives them back, float64."""
    if np.dtype(dtype).name not in LARGEST:
        return np.asarray(x.astype(dtype), np.float64)
    values, scales = (np.asarray(part, np.float64) for part in _quantize(x, dtype=np.dtype(dtype)))
    return values * scales[..., None]


def run(case: Case, backend: str, dtype=jnp.float32) -> tuple[np.ndarray, np.ndarray]:
    """(the backend's output for queries, keys and values of `dtype`, the reference's), both float32 [T, N, H]."""
    kv_dtype = case.kv_dtype or dtype
    rng = np.random.default_rng(case.seed)
    query_lens, seq_lens = (np.array(column, np.int32) for column in zip(*case.rows, strict=True))
    num_rows, width = len(case.rows), case.table_width or max(1, -(-max(seq_lens) // case.block_size))
    num_blocks = num_rows * width + 1
    tables = rng.permutation(np.arange(1, num_blocks)).reshape(num_rows, width).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    num_tokens = case.num_tokens or int(starts[-1]) + case.padding

    def draw(*shape, dtype=dtype):
        return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)

    layout = make_layout(
        backend,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        block_size=case.block_size,
        dtype=kv_dtype,
    )
    # Every block is full of tokens, those of no context are dropped: cases of one shape compile nothing anew.
    rows, positions = np.divmod(np.arange(num_rows * width * case.block_size, dtype=np.int32), width * case.block_size)
    written = positions < seq_lens[rows]
    if case.sliding_window is not None:  # what no query sees any more may be another row's by now
        written &= positions > (seq_lens - query_lens)[rows] - case.sliding_window
    keys, values = (draw(len(rows), case.num_kv_heads, case.head_dim) for _ in range(2))
    if case.spoilt:
        values = values.at[0].set(jnp.inf)
    slots = slot_mapping(jnp.asarray(tables), rows, jnp.asarray(positions), np.ones(len(rows), bool), case.block_size)
    slots = np.where(written, slots, num_blocks * case.block_size)
    pool = filled(layout, num_blocks, keys, values, jnp.asarray(slots))
    q = draw(num_tokens, case.num_heads, case.head_dim)
    sinks = 3 * draw(case.num_heads, dtype=jnp.float32) if case.sinks else None
    options = dict(scale=case.head_dim**-0.5, sliding_window=case.sliding_window, soft_cap=case.soft_cap)
    out = _attend(
        q, pool, jnp.asarray(tables), jnp.asarray(starts), jnp.asarray(seq_lens), sinks,
        backend=backend, layout=layout, **options,
    )  # fmt: skip

    flat = np.full((2, num_blocks * case.block_size, case.num_kv_heads, case.head_dim), np.nan)
    for index, array in enumerate((keys, values)):
        flat[index, slots[written]] = as_stored(array, kv_dtype)[written]
    paged = flat.reshape(2, num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    expected = paged_attention_reference(np.asarray(q, np.float32), *paged, tables, starts, seq_lens, sinks, **options)
    return np.asarray(out, np.float32), expected.astype(np.float32)


def assert_close(case: Case, backend: str, dtype=jnp.float32) -> None:
    """Relative to the largest value: 1e-5 in float32, 2e-2 in bfloat16."""
    out, expected = run(case, backend, dtype)
    tolerance = 1e-5 if dtype == jnp.float32 and case.kv_dtype != "bfloat16" else 2e-2
    np.testing.assert_allclose(out, expected, atol=tolerance * max(1.0, np.abs(expected).max()))
