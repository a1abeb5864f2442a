"""Kernels become Triton code for GPUs that are not here, at shapes of real models. Nothing is compiled or run."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from xlaserve_kernels.arg_specs import ATTENTION, BATCHES

TARGETS = {"cuda": "NVIDIA H100 80GB HBM3", "rocm": "gfx942"}


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # by jax 0.12
@pytest.mark.parametrize("platform", TARGETS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", ATTENTION)
def test_paged_attention(model, batch, platform):
    attend, arguments = ATTENTION[model].call(*BATCHES[batch], "pallas_gpu")
    mesh = AbstractMesh((), (), abstract_device=AbstractDevice(TARGETS[platform], None, "gpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(attend).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("custom_call") >= 2  # the tiles and the reduction
    assert "paged_attention_reduce" in text
