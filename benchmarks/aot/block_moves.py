"""The programs that move whole blocks (copies, to the host and back), compiled for a chip that is not here."""

import functools

import jax
import numpy as np

from benchmarks.aot import compiling
from benchmarks.aot.body import BLOCK_SIZE, backend_for
from xlaserve.models.config import ModelConfig
from xlaserve.models.kv_spec import kv_specs
from xlaserve.runner.compiler import COMPILER_OPTIONS
from xlaserve.runner.host_blocks import PACKING, gather_blocks, scatter_blocks, staged_spec
from xlaserve.runner.kv_cache import copy_blocks, copy_packing, make_layouts
from xlaserve.targets import find_chip


def compile_block_moves(
    config: ModelConfig, target: str, *, num_blocks: int, num_rows: int = 64, dtype: str = "bfloat16"
) -> dict[str, jax.stages.Compiled]:
    """`copy`, `gather` and `scatter` over pools of `num_blocks`. `config`: its layers are of one group."""
    platform = find_chip(target).platform
    specs = kv_specs(config)
    (layout,) = make_layouts(specs, backend_for(platform), BLOCK_SIZE, np.dtype(dtype))
    pools = (layout.pool_spec(num_blocks),) * config.num_layers
    packing = copy_packing(1, num_rows)
    programs = {
        "copy": (functools.partial(copy_blocks, packing=packing, specs=specs), (pools, _ints(packing.size)), (0,)),
        "gather": (gather_blocks, (pools, _ints(PACKING.size)), ()),
        "scatter": (scatter_blocks, (pools, staged_spec(specs[0], layout), _ints(PACKING.size)), (0,)),
    }
    options = COMPILER_OPTIONS.get("tpu" if platform == "tpu" else "gpu", {})
    return {
        name: compiling.compile(function, arguments, target, donate=donate, options=options)
        for name, (function, arguments, donate) in programs.items()
    }


def _ints(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), "int32")
