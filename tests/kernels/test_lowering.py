"""Kernels become Triton code for GPUs that are not here, at shapes of real models. Nothing is compiled or run."""

import functools

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from xlaserve_kernels.arg_specs import ATTENTION
from xlaserve_kernels.paged_attention import make_layout, paged_attention

TARGETS = {"cuda": "NVIDIA H100 80GB HBM3", "rocm": "gfx942"}
BATCHES = {"decode": (64, 64), "mixed": (1024, 64)}  # tokens, rows


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # by jax 0.12
@pytest.mark.parametrize("platform", TARGETS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", ATTENTION)
def test_paged_attention(model, batch, platform):
    shape, (num_tokens, num_rows) = ATTENTION[model], BATCHES[batch]
    layout = make_layout(
        "pallas_gpu", num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, block_size=16, dtype="bfloat16"
    )
    arguments = (
        jax.ShapeDtypeStruct((num_tokens, shape.num_heads, shape.head_dim), "bfloat16"),
        jax.ShapeDtypeStruct(layout.shape(4096), layout.storage_dtype),
        jax.ShapeDtypeStruct((num_rows, 128), "int32"),
        jax.ShapeDtypeStruct((num_rows + 1,), "int32"),
        jax.ShapeDtypeStruct((num_rows,), "int32"),
    )
    attend = functools.partial(
        paged_attention, backend="pallas_gpu", layout=layout, scale=shape.head_dim**-0.5,
        sliding_window=shape.sliding_window, soft_cap=shape.soft_cap,
    )  # fmt: skip
    mesh = AbstractMesh((), (), abstract_device=AbstractDevice(TARGETS[platform], None, "gpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(attend).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("custom_call") >= 2  # the tiles and the reduction
    assert "paged_attention_reduce" in text
