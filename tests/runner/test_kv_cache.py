"""What a block costs, with all that a layout adds to keys and values; pools, and copies of blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.paged_attention import KVPool

from xlaserve.models.kv_spec import KVSpec
from xlaserve.runner.kv_cache import block_bytes, copy_blocks, copy_packing, make_layouts, make_pools, pack_copies


@pytest.mark.parametrize(
    ("backend", "dtype", "expected"),
    [
        ("xla", jnp.bfloat16, 16 * 2 * 2 * 80 * 2),
        ("pallas_gpu", jnp.int8, 16 * 2 * 2 * (80 + 4)),  # a scale per token, head, and key or value
        ("pallas_tpu", jnp.bfloat16, 16 * 2 * 2 * 128 * 2),  # 80 numbers take 128 lanes
    ],
)
def test_of_a_block(backend, dtype, expected):
    specs = tuple(KVSpec(name, layers, 2, 80, None) for name, layers in (("full", (0, 2)), ("sliding", (1,))))
    layouts = make_layouts(specs, backend, 16, np.dtype(dtype))
    assert [block_bytes(*pair) for pair in zip(specs, layouts, strict=True)] == [2 * expected, expected]


def test_each_layer_has_a_pool_of_its_groups_size():
    specs = (KVSpec("full", (1, 3), 2, 8, None), KVSpec("sliding", (0, 2), 2, 8, 8))
    pools = make_pools(specs, make_layouts(specs, "xla", 16, np.dtype(np.float32)), (7, 3))
    assert [pool.pages.shape[0] for pool in pools] == [3, 7, 3, 7]


def test_copies_are_made_one_after_the_other_in_the_layers_of_their_group():
    specs = (KVSpec("full", (0, 2), 1, 4, None), KVSpec("sliding", (1,), 1, 4, 8))
    rng = np.random.default_rng(0)

    def pool() -> KVPool:  # with scales, as quantised ones have them
        pages, scales = (rng.standard_normal((5, *shape)).astype(np.float32) for shape in ((2, 1, 4), (2, 1)))
        return KVPool(pages, scales)

    pools, packing = tuple(pool() for _ in range(3)), copy_packing(num_groups=2, num_rows=3)
    packed = pack_copies(packing, ((0, 1, 2), (0, 2, 4), (1, 3, 1), (0, 3, 2)))
    copied = jax.jit(lambda pools, packed: copy_blocks(pools, packed, packing=packing, specs=specs))(pools, packed)
    for layer, sources in enumerate(([1, 3, 3, 1], [3, 2, 3, 4], [1, 3, 3, 1])):  # of blocks 1 to 4
        for before, after in zip(jax.tree.leaves(pools[layer]), jax.tree.leaves(copied[layer]), strict=True):
            np.testing.assert_array_equal(after[1:], before[sources])
