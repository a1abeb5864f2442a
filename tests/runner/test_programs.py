"""What the compiled programs cost in memory, by the compiler's own account."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from xlaserve.layers import linear
from xlaserve.layers.params import map_specs
from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import parse_config
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.runner.buckets import Buckets, make_buckets
from xlaserve.runner.dtype import named_dtype
from xlaserve.runner.program_memory import probe_memory, program_memory
from xlaserve.runner.programs import Programs, ProgramShapes, compile_all, compile_programs, lowerings
from xlaserve.sharding import make_mesh, replicated

TINY = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


def tiny(
    dtype: np.dtype,
    *,
    kv_dtype: np.dtype | None = None,
    num_blocks: int = 2,
    host_slots: tuple[int, ...] = (),
    **keys,
) -> tuple[ProgramShapes, Any, Any, jax.sharding.Sharding]:
    """Shapes, abstract weights, the head's, and where they are."""
    config = parse_config(TINY | keys, "tiny")
    kv_dtype = dtype if kv_dtype is None else kv_dtype
    shapes = ProgramShapes(config, Buckets((4, 48), (4,)), 4, 32, 16, (num_blocks,), "xla", dtype, kv_dtype, host_slots)
    sharding = replicated(make_mesh())
    params = map_specs(
        lambda _, spec: jax.ShapeDtypeStruct(spec.shape, dtype, sharding=sharding),
        FAMILIES[config.family].param_specs(config),
    )
    return shapes, params, head_weight(params), sharding


def compile_tiny(dtype: np.dtype, **keys) -> tuple[Programs, ProgramShapes]:
    arguments = tiny(dtype, **keys)
    return compile_programs(*arguments, lambda *_: None), arguments[0]


def test_a_deployment_of_16_rows_has_16_programs():
    shapes, *arguments = tiny(named_dtype("float32"))
    assert len(list(lowerings(replace(shapes, buckets=make_buckets(16, 256)), *arguments))) == 16


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "fp8")],
)
def test_a_step_copies_no_kv_pool(dtype, kv_dtype):
    """jax 0.10's CPU compiler wrote into a bfloat16 pool by converting all of it to float32 and back."""
    dtypes = {"dtype": named_dtype(dtype), "kv_dtype": named_dtype(kv_dtype)}
    programs, shapes = compile_tiny(**dtypes, num_blocks=8193, host_slots=(8,))
    (layout,) = shapes.layouts
    pool_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(layout.pool_spec(8193)))
    moves = (programs.copy_blocks, *programs.gather_blocks, *programs.scatter_blocks)
    assert len(moves) == 3
    for program in (*programs.bodies.values(), programs.reset_row, *moves):
        memory = program.memory_analysis()
        assert memory.temp_size_in_bytes < pool_bytes / 4
    for body in (*programs.bodies.values(), programs.copy_blocks, *programs.scatter_blocks):
        assert body.memory_analysis().alias_size_in_bytes >= 3 * pool_bytes  # donated: written in place
    # So what is measured over small pools holds for large ones.
    programs = replace(programs, gather_blocks=(), scatter_blocks=())  # their budget is a fixed one
    final, probed = program_memory(shapes, programs.of_steps), probe_memory(*tiny(**dtypes, num_blocks=64))
    assert 0 < final.temporaries == pytest.approx(probed.temporaries, rel=0.1)
    assert (final.outputs, final.state) == (probed.outputs, probed.state)
    assert final.code <= probed.code
    rules = 64 * (4 + 2) + 2 * 2 * 4  # of a row: bias and int16 counts of 64 tokens, bits of the prompt and the stops
    assert final.state == 4 * (4 * 32 + 4 + 4 * 11 + 1 + rules)  # tables, last token, parameters, whether it has rules


def test_a_prompt_chunk_copies_no_weights(monkeypatch):
    """Where bfloat16 is widened, that is done layer by layer: the compiler would do all of them first."""
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: False)
    programs, shapes = compile_tiny(named_dtype("bfloat16"), hidden_size=256, intermediate_size=1024)
    mlps = 4 * shapes.config.num_layers * 3 * 256 * 1024  # bytes of their float32 copies
    assert programs.bodies[48].memory_analysis().temp_size_in_bytes < 0.75 * mlps


@pytest.mark.parametrize("mode", ["w8a16", "fp8_w8a8"])
def test_a_step_widens_quantised_weights_layer_by_layer(mode):
    """The compiler would widen those of all layers first, and keep a copy of the whole model."""
    shapes, *_, sharding = tiny(np.dtype(np.float32), hidden_size=256, intermediate_size=1024)
    quantization = Quantization("named", mode, "xla")
    specs = quantization.stored(FAMILIES["llama"].param_specs(shapes.config), shapes.dtype)
    params = map_specs(
        lambda _, spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype or shapes.dtype, sharding=sharding), specs
    )
    jobs = dict(lowerings(shapes, params, head_weight(params), sharding))
    body = compile_all({("body", 4): jobs["body", 4]}, sharding, lambda *_: None)["body", 4]
    mlps = 4 * shapes.config.num_layers * 3 * 256 * 1024  # bytes of their float32 copies
    assert body.memory_analysis().temp_size_in_bytes < 0.75 * mlps
