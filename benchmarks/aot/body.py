"""The engine's body for a model of which only the configuration is here: abstract weights, no memory."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from xlaserve_kernels.backend import BACKENDS
from xlaserve_kernels.paged_attention import KVLayout, KVPool, make_layout
from xlaserve_kernels.quantized_matmul import quantize_weight

from benchmarks.aot import compiling
from xlaserve.layers.params import ArraySpec, map_specs
from xlaserve.layers.quantized import QuantizedArray
from xlaserve.models.config import ModelConfig, parse_config
from xlaserve.models.forward_batch import attention_plan
from xlaserve.models.kv_spec import kv_specs
from xlaserve.models.registry import FAMILIES
from xlaserve.runner.body import BodyShape, make_body
from xlaserve.runner.compiler import COMPILER_OPTIONS
from xlaserve.sharding import MESH_AXES, replicated, sharding_of
from xlaserve.targets import devices, find_chip

LLAMA_8B = Path(__file__).parent.parent / "llama_3_1_8b.json"
BLOCK_SIZE = 16
GROUP_SIZE = 128  # of the inputs that share a scale, with int8 weights
KERNELS = {"tpu": "pallas_tpu", "cuda": "pallas_gpu", "rocm": "pallas_gpu"}


def backend_for(platform: str) -> str:
    """The kernels for a target's platform; XLA's operations where there are none yet."""
    return KERNELS[platform] if KERNELS[platform] in BACKENDS else "xla"


def read_config(path: Path = LLAMA_8B, *, num_layers: int | None = None) -> ModelConfig:
    """`num_layers`: fewer of them, where that is enough to see."""
    values = json.loads(path.read_text(encoding="utf-8"))
    if num_layers is not None:
        values |= {"num_hidden_layers": num_layers}
    return parse_config(values, str(path))


@dataclass(frozen=True)
class Step:
    """A program's shape: T padded tokens for R rows, tables for `context` tokens a row, a pool that holds them all."""

    num_tokens: int
    num_rows: int
    context: int

    @property
    def num_blocks(self) -> int:
        return self.num_rows * self.context // BLOCK_SIZE + 1


def in_layers(name: str, spec: ArraySpec) -> bool:
    """Whether it is a matrix of a layer: what is read in every step, and quantised."""
    return ".layers." in name and len(spec.shape) == 2


def compile_body(
    config: ModelConfig, target: str, step: Step, *, dtype: str = "bfloat16", int8: bool = False,
    num_devices: int = 1, dump_to: str | None = None,
) -> jax.stages.Compiled:  # fmt: skip
    """The body as the engine has it, with the target's kernels; tensor parallel over `num_devices`.

    `int8`: weights of the layers are w8a8, activations quantised in groups.
    """
    mesh = Mesh(np.array(devices(target, find_chip(target), num_devices)).reshape(1, -1), MESH_AXES)
    platform = find_chip(target).platform
    backend = backend_for(platform)
    layouts = tuple(
        make_layout(
            backend, num_kv_heads=spec.num_kv_heads // num_devices, head_dim=spec.head_dim, block_size=BLOCK_SIZE,
            dtype=dtype,
        )
        for spec in kv_specs(config)
    )  # fmt: skip
    plan = attention_plan(config, backend, layouts, mesh if num_devices > 1 else None)
    shape = BodyShape(step.num_tokens, step.num_rows, step.num_rows, len(layouts), BLOCK_SIZE)
    everywhere, pools = replicated(mesh), NamedSharding(mesh, PartitionSpec("model"))

    def weight(name: str, spec: ArraySpec) -> jax.ShapeDtypeStruct | QuantizedArray:
        sharding = sharding_of(mesh, spec.axes)
        plain = jax.ShapeDtypeStruct(spec.shape, dtype, sharding=sharding)
        if not (int8 and in_layers(name, spec)):
            return plain
        quantized = jax.eval_shape(functools.partial(quantize_weight, mode="w8a8", group_size=GROUP_SIZE), plain)
        by_axes = {2: sharding, 1: sharding_of(mesh, spec.axes[:1])}  # values, scales
        placed = jax.tree.map(lambda part: part.update(sharding=by_axes[part.ndim]), quantized)
        return QuantizedArray(placed, backend, sharding if num_devices > 1 else None)

    def pool(layout: KVLayout) -> KVPool:
        def of_all(part: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((num_devices * part.shape[0], *part.shape[1:]), part.dtype, sharding=pools)

        return jax.tree.map(of_all, layout.pool_spec(step.num_blocks))

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "int32", sharding=everywhere)

    arguments = (
        map_specs(weight, FAMILIES[config.family].param_specs(config)),
        tuple(pool(options.layout) for options in plan.options),
        tuple(ints(step.num_rows, step.context // BLOCK_SIZE) for _ in layouts),
        ints(step.num_rows),
        shape.packing.abstract(everywhere),
    )
    return compiling.compile(
        make_body(FAMILIES[config.family].forward, config, plan, shape), arguments, target,
        donate=(1, 2), out_shardings=(everywhere, pools, everywhere), dump_to=dump_to,
        options=COMPILER_OPTIONS.get("tpu" if platform == "tpu" else "gpu", {}),
    )  # fmt: skip
