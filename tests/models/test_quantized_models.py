"""Models whose weights are quantised when they are loaded: what they compute, and how far that is from transformers."""

import ml_dtypes
import numpy as np
import pytest
from xlaserve_kernels import native

from tests import tiny_models
from tests.kernels.conftest import needs_native
from tests.models.test_parity import forward_logits, load, load_checkpoint
from tests.tiny_models import LENGTHS
from xlaserve.layers.quantized import Quantization
from xlaserve.models.safetensors_folder import SafetensorsFolder

GROUPS = (128, 64, 32)
WEIGHT_ONLY = Quantization("int8_weight_only", "w8a16", "xla")
INT8 = Quantization("int8", "w8a8", "xla", GROUPS)
FP8 = Quantization("fp8", "fp8_w8a8", "xla")
NATIVE = Quantization("int8", "w8a8", "cpu_native", GROUPS)
NATIVE_WEIGHT_ONLY = Quantization("int8_weight_only", "w8a16", "cpu_native")
NAMES = ("llama-tied", "llama-biases", "gemma3")
# In standard deviations of the logits: the largest error at a position, in the median and at most; and how far apart
# the best two may be where another is found to be the best. Tiny models have few inputs to a sum: a real one's errors
# are a tenth of these.
BOUNDS = {"w8a8": (0.2, 0.7, 0.35), "w8a16": (0.15, 0.5, 0.25), "fp8_w8a8": (0.75, 2.0, 0.8)}


class Rounded(SafetensorsFolder):
    """Matrices as int8 with a scale per row holds them, by plain numpy."""

    def read(self, name, dtype=None):
        weight = super().read(name, dtype)
        if weight.ndim != 2:
            return weight
        exact = weight.astype(np.float64)
        scales = np.abs(exact).max(axis=1, keepdims=True) / 127
        scales = np.maximum(scales, 2.0**-100)  # of a row of zeros, as that of padding
        nearest = scales.astype(ml_dtypes.bfloat16).astype(np.float64)
        up = np.nextafter(nearest.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16(np.inf)).astype(np.float64)
        scales = np.where(nearest < scales, up, nearest)
        return (np.rint(exact / scales) * scales).astype(weight.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_is_the_nearest_that_int8_can_hold(name):
    """Embeddings and head among them, tied or not; norms and biases stay."""
    rounded = forward_logits(*load_checkpoint(Rounded(tiny_models.folder(name))), tiny_models.prompts(LENGTHS))
    found = forward_logits(*load(name, quantization=WEIGHT_ONLY), tiny_models.prompts(LENGTHS))
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(rounded), atol=1e-3)


CASES = [("llama-tied", INT8), ("llama-tied", FP8)]
CASES += [pytest.param(name, way, marks=needs_native) for name in NAMES for way in (NATIVE, NATIVE_WEIGHT_ONLY)]


@pytest.mark.parametrize(("name", "quantization"), CASES)
def test_logits_are_near_transformers(name, quantization):
    if quantization.backend == "cpu_native":
        native.load(native.default_folder())
    found = np.concatenate(forward_logits(*load(name, quantization=quantization), tiny_models.prompts(LENGTHS)))
    exact = np.concatenate(tiny_models.logits(name, LENGTHS))
    unit = exact.std()
    median, largest, _ = tiny_models.errors(found, exact)
    at_median, at_most, parted_at = BOUNDS[quantization.mode]
    assert median / unit <= at_median
    assert largest / unit <= at_most
    second, best = np.sort(exact)[:, -2:].T
    parted = found.argmax(axis=-1) != exact.argmax(axis=-1)
    assert (best - second)[parted].max(initial=0) / unit <= parted_at
