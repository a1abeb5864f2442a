"""RMSNorm in C++."""

import jax
import numpy as np
from jax import Array

from xlaserve_kernels.native.library import call


def rms_norm(x: Array, weight: Array, eps: float, *, unit_offset: bool) -> Array:
    """x [..., D], weight [D] -> [..., D], all float32 or all bfloat16; computed in float32.

    What is normalised is rounded, then scaled; with `unit_offset` it is scaled by 1 + weight and rounded once. To the
    last bit, a row does not depend on the others. Rows of zeros stay zeros.
    """
    normalize = call("rms_norm", jax.ShapeDtypeStruct(x.shape, x.dtype))
    return normalize(x, weight, eps=np.float32(eps), unit_offset=np.bool_(unit_offset))
