"""The bytes that the kernels around attention load and store, derived from their grids and block specs.

Of attention itself: paged_attention/traffic.py. Arrays may be ShapeDtypeStructs. Plans of a few bytes per row or tile
are left out. TPUs: what Pallas's pipeline copies from and to HBM; it does not fetch a block again that the step before
had. GPUs: what programs load; of that the L2 cache serves what neighbours have just loaded. The tests count what the
interpreted kernels load and find the same.
"""

from math import prod

import numpy as np
from jax.experimental import pallas as pl

from xlaserve_kernels.grouped_matmul import pallas_gpu as grouped_gpu
from xlaserve_kernels.paged_attention.merged_rows import LANES, MergedRowsLayout
from xlaserve_kernels.quantized_matmul import QuantizedWeight
from xlaserve_kernels.quantized_matmul import pallas_gpu as quantized_gpu
from xlaserve_kernels.quantized_matmul import pallas_tpu as quantized_tpu

_FLOAT32 = 4  # bytes


def quantized_matmul_traffic(x, x_scales, weight: QuantizedWeight, bias, out_dtype, *, backend: str) -> int:
    """Of `pallas_tpu` or `pallas_gpu`; arguments as these have them (api.py)."""
    num_tokens, out = x.shape[0], weight.out_features
    stored = num_tokens * out * np.dtype(out_dtype).itemsize
    of_weight = (weight.values, weight.scales, weight.zeros)
    if backend == "pallas_gpu":  # program (t, o) loads its rows of x and of the weight
        tile = quantized_gpu.choose_tile(num_tokens, weight)
        of_tokens, of_outputs = pl.cdiv(num_tokens, tile.tokens), pl.cdiv(out, tile.outputs)
        return _bytes(x, x_scales) * of_outputs + _bytes(*of_weight, bias) * of_tokens + stored
    sizes = quantized_tpu.choose_sizes(num_tokens, out, weight.in_features, x.dtype.itemsize, weight)
    steps = weight.in_features // sizes.inputs
    of_tokens, of_outputs = pl.cdiv(num_tokens, sizes.tokens), pl.cdiv(out, sizes.outputs)
    # Grid (t, o, k): what is fetched again is what other blocks came between, of the same or a later axis.
    x_times = of_outputs if steps > 1 and not sizes.resident else 1
    weight_times = of_tokens if of_outputs * steps > 1 else 1
    row_times = of_tokens if of_outputs > 1 else 1
    rows = 0 if bias is None else out * _FLOAT32
    x_bytes = _bytes(x) * x_times
    if not sizes.packed:
        rows, of_weight = rows + out * _FLOAT32, (weight.values,)
    elif weight.scales.shape[0] % 2:  # x is padded by a group
        x_bytes += num_tokens * (weight.group_size or 0) * x.dtype.itemsize
    return x_bytes + _bytes(x_scales) + _bytes(*of_weight) * weight_times + rows * row_times + stored


def grouped_matmul_traffic(x, weights, group_sizes: np.ndarray) -> int:
    """Of `pallas_gpu`; arguments as in api.py, the group sizes known: a weight for each tile of its group's tokens."""
    (num_groups, inputs, out), num_tokens = weights.shape, x.shape[0]
    tile = grouped_gpu.choose_tile(num_tokens, num_groups)
    tiles, tokens = int(np.sum(-(-group_sizes // tile.tokens))), int(np.sum(group_sizes))
    numbers = tokens * inputs * pl.cdiv(out, tile.outputs) + tiles * inputs * out + num_tokens * out
    return numbers * x.dtype.itemsize


def add_rms_norm_traffic(x, weight, quantize_group: int | None) -> int:
    """Of `pallas_gpu`; arguments as in api.py: the residual read and written, the weight once per token."""
    return 3 * _bytes(x) + x.shape[0] * _bytes(weight) + _result_bytes(x.shape, x.dtype.itemsize, quantize_group)


def gated_activation_traffic(gate_up, quantize_group: int | None) -> int:
    """Of `pallas_tpu` and `pallas_gpu`; arguments as in api.py: everything once."""
    num_tokens, width = gate_up.shape
    return _bytes(gate_up) + _result_bytes((num_tokens, width // 2), gate_up.dtype.itemsize, quantize_group)


def _result_bytes(shape: tuple[int, ...], itemsize: int, quantize_group: int | None) -> int:
    """Of a result with a number of `itemsize`, or an int8 and its share of a scale."""
    if quantize_group is None:
        return prod(shape) * itemsize
    return prod(shape) + prod(shape) // quantize_group * _FLOAT32


def kv_write_traffic(layout: MergedRowsLayout, query_lens: np.ndarray, seq_lens: np.ndarray, *, num_tokens: int) -> int:
    """Of `pallas_tpu`; query_lens, seq_lens int [R] with this step's tokens; num_tokens with padding.

    Each block touched is read and written, with the tokens of as many slots as a block has.
    """
    size = layout.block_size
    touched = np.where(query_lens > 0, (seq_lens - 1) // size - (seq_lens - query_lens) // size + 1, 0)
    live = int(np.sum(touched))
    segments = min(num_tokens, num_tokens // size + 2 * len(query_lens))
    idle = live < segments  # these are all at token 0 and the null block
    page = _bytes(*layout.pool_spec(1))
    token = layout.block_bytes // size + (layout.scale_rows * LANES * _FLOAT32 if layout.quantized else 0)
    return 2 * page * (live + idle) + min(num_tokens, size) * token * (live + (idle and live != 1))


def _bytes(*arrays) -> int:
    return sum(prod(array.shape) * array.dtype.itemsize for array in arrays if array is not None)
