"""The grouped matrix product as XLA has it. Runs anywhere.

On TPUs one kernel that visits only the live pairs of a group and a block of tokens. On GPUs and CPUs a product with all
experts' weights, E times the work.
"""

import jax.numpy as jnp
from jax import Array, lax

# Contracts axis 1 of x with axis 2 of the weights, [E, out, in]; axis 0 of x is ragged.
_DIMENSIONS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(([1], [2]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def grouped_matmul_xla(x: Array, weights: Array, group_sizes: Array) -> Array:
    """See api.py."""
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    y = lax.ragged_dot_general(
        x, weights, group_sizes, _DIMENSIONS, precision=precision, preferred_element_type=jnp.float32
    )
    live = jnp.arange(x.shape[0]) < group_sizes.sum()  # nothing promises what the product leaves in other rows
    return jnp.where(live[:, None], y, 0).astype(x.dtype)
