"""What a block costs, with all that a layout adds to keys and values."""

import jax.numpy as jnp
import numpy as np
import pytest

from xlaserve.models.kv_spec import KVSpec
from xlaserve.runner.kv_cache import block_bytes, make_layouts


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
    assert block_bytes(specs, layouts) == 3 * expected
