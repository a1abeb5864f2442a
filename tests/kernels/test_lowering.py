"""Kernels become Triton or Mosaic code for hardware that is not here, at shapes of real models; nothing is compiled."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from xlaserve_kernels.arg_specs import ATTENTION, BATCHES

TARGETS = {  # the platform, the device, the backend and the kernels of an attention
    "cuda": (AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"), "pallas_gpu", ("paged_attention_reduce",)),
    "rocm": (AbstractDevice("gfx942", None, "gpu"), "pallas_gpu", ("paged_attention_reduce",)),
    "tpu": (AbstractDevice("TPU v5 lite", 1, "tpu"), "pallas_tpu", ("paged_attention",)),
}


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # by jax 0.12
@pytest.mark.parametrize("platform", TARGETS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", ATTENTION)
def test_paged_attention(model, batch, platform):
    device, backend, kernels = TARGETS[platform]
    attend, arguments = ATTENTION[model].call(*BATCHES[batch], backend)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        text = jax.jit(attend).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("custom_call") >= len(kernels)
    assert all(kernel in text for kernel in kernels)
