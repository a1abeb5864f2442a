"""Decoding of stored words, against what the programs that write them read of them (tests/record_quantized.py)."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.quantized_matmul import QuantizedWeight, quantized_matmul

from xlaserve.models.quantized_decoding import (
    Decoded,
    awq_values,
    gptq_values,
    gptq_zeros,
    kernel_group,
    kernel_parts,
    packed_values,
    packed_zeros,
)

RECORDED = Path(__file__).parents[1] / "data" / "quantized.npz"
ARRAYS = dict(np.load(RECORDED)) if RECORDED.exists() else {}
CASES = sorted({name.partition("/")[0] for name in ARRAYS if "/" in name})


def parts_of(case: str) -> dict[str, np.ndarray]:
    return {name.partition("/")[2]: array for name, array in ARRAYS.items() if name.startswith(f"{case}/")}


def decode(case: str) -> Decoded:
    parts = parts_of(case)
    if case == "awq":
        return Decoded(awq_values(parts["qweight"]), widened(parts["scales"].T), awq_values(parts["qzeros"]))
    if case.startswith("gptq"):
        return Decoded(gptq_values(parts["qweight"]), widened(parts["scales"].T), gptq_zeros(parts["qzeros"], 1))
    bits, (num_outputs, num_inputs) = 8 if "8 bits" in case else 4, parts["weight_shape"]
    zeros = packed_zeros(parts["weight_zero_point"], num_outputs) if "zero points" in case else None
    return Decoded(packed_values(parts["weight_packed"], bits, num_inputs), parts["weight_scale"], zeros)


def widened(scales: np.ndarray) -> np.ndarray:
    return scales.astype(np.float32)


def test_all_is_recorded():
    assert len(CASES) == 7


@pytest.mark.parametrize("case", CASES)
def test_what_is_decoded_is_what_its_writer_reads(case):
    found, read = decode(case).dequantized, parts_of(case)["read"].astype(np.float32)
    np.testing.assert_allclose(found, read, rtol=2**-10, atol=1e-7)  # AutoGPTQ and AutoAWQ multiply in float16
    coarseness = 0.008 if "8 bits" in case else 0.15  # of each output's largest
    assert (np.abs(found - ARRAYS["weight"]) <= coarseness * np.abs(ARRAYS["weight"]).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("case", [case for case in CASES if "8 bits" not in case])
@pytest.mark.parametrize("group", [32, 96])
def test_kernels_multiply_with_what_was_decoded(case, group):
    decoded = decode(case)
    if group > 32:  # cut off, with a stored group of all inputs
        decoded = Decoded(
            decoded.values, decoded.scales[:, :1], None if decoded.zeros is None else decoded.zeros[:, :1]
        )
    size = kernel_group(96, group)
    assert size == 32
    values, scales, zeros = kernel_parts(decoded, "w4a16", size)
    weight = QuantizedWeight(*map(as_array, (values, scales, zeros)), "w4a16", size)
    found = quantized_matmul(jnp.eye(96, dtype=jnp.float32), weight, backend="xla").T
    np.testing.assert_allclose(found, decoded.dequantized, rtol=1e-5, atol=1e-6)


def as_array(part):
    return None if part is None else jnp.asarray(part)


@pytest.mark.parametrize(
    ("num_inputs", "group_size", "expected"),
    [
        (128, 128, 128),
        (256, 256, 128),
        (192, 64, 64),
        (96, None, 32),
        (192, None, 64),
        (384, None, 128),
        (80, None, None),
    ],
)
def test_the_groups_that_kernels_take(num_inputs, group_size, expected):
    assert kernel_group(num_inputs, group_size) == expected


def test_zero_points_that_nobody_agrees_on_are_refused():
    words = np.array([[0x7777777F]], np.int32)
    np.testing.assert_array_equal(gptq_zeros(words, 0), np.array([[15] + 7 * [7]]).T)
    with pytest.raises(ValueError, match="0 or 16"):
        gptq_zeros(words, 1)
