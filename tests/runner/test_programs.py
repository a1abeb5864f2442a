"""What the compiled programs cost in memory, by the compiler's own account."""

import jax
import numpy as np
import pytest

from xlaserve.layers.params import map_specs
from xlaserve.models.config import parse_config
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.runner.buckets import Buckets
from xlaserve.runner.dtype import named_dtype
from xlaserve.runner.programs import Programs, ProgramShapes, compile_programs
from xlaserve.sharding import make_mesh, replicated

TINY = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
NUM_BLOCKS = 8193


def compile_tiny(dtype: np.dtype) -> tuple[Programs, int]:
    """(the programs, bytes of one layer's KV pool)"""
    config = parse_config(TINY, "tiny")
    shapes = ProgramShapes(config, Buckets((4, 32), (4,)), 4, 32, 16, NUM_BLOCKS, "xla", dtype, dtype)
    sharding = replicated(make_mesh())
    params = map_specs(
        lambda _, spec: jax.ShapeDtypeStruct(spec.shape, dtype, sharding=sharding),
        FAMILIES[config.family].param_specs(config),
    )
    programs = compile_programs(shapes, params, head_weight(params), sharding, lambda *_: None)
    (layout,) = shapes.layouts
    return programs, int(np.prod(layout.shape(NUM_BLOCKS))) * layout.storage_dtype.itemsize


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_step_copies_no_kv_pool(dtype):
    """jax 0.10's CPU compiler wrote into a bfloat16 pool by converting all of it to float32 and back."""
    programs, pool_bytes = compile_tiny(named_dtype(dtype))
    for program in (*programs.bodies.values(), programs.reset_row):
        memory = program.memory_analysis()
        assert memory.temp_size_in_bytes < pool_bytes / 4
    for body in programs.bodies.values():
        assert body.memory_analysis().alias_size_in_bytes >= 2 * pool_bytes  # donated: written in place
