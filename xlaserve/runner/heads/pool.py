"""The `pool` head: sums of hidden rows, in float32. Dividing and normalising are left to whoever knows how many."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from xlaserve.runner.commands import Pool
from xlaserve.runner.packing import DROPPED, Packing


def pool_packing(num_outputs: int) -> Packing:
    return Packing((("sums", (num_outputs,)),))  # of each hidden row, the sum it belongs to


def pack_pool(packing: Packing, command: Pool) -> np.ndarray:
    buffer, parts = packing.new()
    parts["sums"][:] = DROPPED
    for index, (first, count) in enumerate(command.hidden_rows):
        parts["sums"][first : first + count] = index
    return buffer


def make_pool(packing: Packing) -> Callable[[Array, Array], Array]:
    """The function to compile: (hidden [S, D], packed) -> float32 [S, D], a sum in each row. Nothing is donated."""

    def pool(hidden: Array, packed: Array) -> Array:
        sums = packing.unpack(packed)["sums"]
        wide = hidden.astype(jnp.float32)
        return jax.ops.segment_sum(wide, sums, num_segments=hidden.shape[0], mode="drop")

    return pool
