"""Blocks to the host and back, by the runner's commands and by the programs alone."""

import jax
import numpy as np
import pytest
from xlaserve_kernels.paged_attention import KVPool

from xlaserve.models.kv_spec import KVSpec
from xlaserve.runner.host_blocks import STAGED_BLOCKS, HostSlots, gather_blocks, pack_blocks, rounds, scatter_blocks
from xlaserve.runner.kv_cache import make_layouts

SPECS = (KVSpec("full", (0, 2), 1, 4, None), KVSpec("sliding", (1,), 1, 4, 8))


def test_rounds_keep_the_order_within_a_group():
    blocks = tuple((n % 2, n, 100 + n) for n in range(2 * STAGED_BLOCKS + 2))
    found = list(rounds(blocks))
    assert [(group, len(sources)) for group, sources, _ in found] == [(0, 16), (0, 1), (1, 16), (1, 1)]
    assert found[0][1:] == (tuple(range(0, 32, 2)), tuple(range(100, 132, 2)))
    assert found[3][1:] == ((33,), (133,))


@pytest.mark.parametrize("count", [1, STAGED_BLOCKS])
def test_there_and_back(count):
    rng = np.random.default_rng(0)
    layouts = make_layouts(SPECS, "xla", 4, np.dtype(np.int8))  # with scales

    def filled(x: jax.ShapeDtypeStruct) -> np.ndarray:
        return rng.integers(-100, 100, x.shape).astype(x.dtype)

    pools: tuple[KVPool, ...] = tuple(jax.tree.map(filled, layouts[0].pool_spec(40)) for _ in range(2))
    host = HostSlots(SPECS, layouts, (50, 50))
    blocks, slots = tuple(rng.permutation(39)[:count] + 1), tuple(rng.permutation(50)[:count])
    host.write(0, slots, gather_blocks(pools, pack_blocks(blocks)))
    targets = tuple(rng.permutation(39)[:count] + 1)
    after = jax.jit(scatter_blocks)(pools, host.read(0, slots), pack_blocks(targets))
    for old, new in zip(jax.tree.leaves(pools), jax.tree.leaves(after), strict=True):
        expected = np.array(old)
        expected[list(targets)] = old[list(blocks)]
        np.testing.assert_array_equal(new, expected)


def test_the_last_of_several_that_go_to_one_block_stays():
    layouts = make_layouts(SPECS, "xla", 4, np.dtype(np.float32))
    pools = tuple(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), layouts[0].pool_spec(4)) for _ in range(2))
    staged = jax.tree.map(
        lambda x: np.arange(STAGED_BLOCKS, dtype=x.dtype).reshape(-1, *[1] * x.ndim) * np.ones((2, *x.shape[1:])),
        layouts[0].pool_spec(1),
    )
    after = jax.jit(scatter_blocks)(pools, staged, pack_blocks((3, 2, 3)))
    assert [float(after[1].pages[block].max()) for block in range(4)] == [0, 0, 1, 2]


def test_what_is_read_does_not_change_when_the_slot_does():
    layouts = make_layouts(SPECS, "xla", 4, np.dtype(np.float32))
    host = HostSlots(SPECS, layouts, (1, 1))
    ones, zeros = (jax.tree.map(lambda x, n=n: np.full((16, 2, *x.shape[1:]), n, x.dtype), layouts[0].pool_spec(1))
                   for n in (1, 0))  # fmt: skip
    host.write(0, (0,), ones)
    read = host.read(0, (0,))
    host.write(0, (0,), zeros)
    assert float(read.pages[0].min()) == 1
