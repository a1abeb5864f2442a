"""The closed set of programs of one deployment, compiled before the first request. Nothing compiles after."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled, Lowered
from xlaserve_kernels.paged_attention import KVLayout, KVPool

from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import ModelConfig
from xlaserve.models.forward_batch import attention_plan
from xlaserve.models.kv_spec import KVSpec, kv_specs
from xlaserve.models.registry import FAMILIES
from xlaserve.runner.body import BodyShape, make_body
from xlaserve.runner.buckets import Buckets
from xlaserve.runner.compilations import LOG
from xlaserve.runner.compiler import compile_program
from xlaserve.runner.heads.blocks import ROWS_PER_TILE
from xlaserve.runner.heads.prompt_logprobs import make_prompt_logprobs, prompt_logprobs_packing
from xlaserve.runner.heads.sample import make_sample, sample_packing
from xlaserve.runner.host_blocks import PACKING, gather_blocks, scatter_blocks, staged_spec
from xlaserve.runner.kv_cache import copy_blocks, copy_packing, make_layouts, make_pools
from xlaserve.runner.packing import Packing
from xlaserve.runner.row_state import (
    RowState,
    initial_row_state,
    mask_words,
    reset_packing,
    reset_row,
    rules_packing,
    set_rules,
)
from xlaserve.sharding import RULES, mesh_of

Key = tuple[str, Any]  # kind of program, and its size
MAX_THREADS = 4  # that compile or load programs; more than there are cores take turns, a sixth slower


@dataclass(frozen=True)
class ProgramShapes:
    """Everything that is a shape: change one, and the programs are others."""

    config: ModelConfig
    buckets: Buckets
    max_num_seqs: int  # R
    table_width: int  # W, blocks
    block_size: int
    num_blocks: tuple[int, ...]  # per layer group, the null block included
    backend: str
    dtype: np.dtype
    kv_dtype: np.dtype
    host_slots: tuple[int, ...] = ()  # per layer group; empty: there is no host tier
    processed_logprobs: bool = False  # else the model's own
    num_devices: int = 1  # that share heads and weights: tensor parallel
    quantization: Quantization | None = None  # of the weights
    num_speculative_tokens: int = 0  # drafts of a row in a step, at most

    @property
    def specs(self) -> tuple[KVSpec, ...]:
        return kv_specs(self.config)

    @functools.cached_property
    def layouts(self) -> tuple[KVLayout, ...]:
        """Per layer group, of one device's heads."""
        return make_layouts(self.specs, self.backend, self.block_size, self.kv_dtype, self.num_devices)

    @functools.cached_property
    def reset_packing(self) -> Packing:
        return reset_packing(len(self.layouts), self.table_width)

    @functools.cached_property
    def rules_packing(self) -> Packing:
        return rules_packing(self.config.vocab_size)

    @property
    def copy_packing(self) -> Packing:
        return copy_packing(len(self.layouts), self.max_num_seqs)

    def body(self, bucket: int) -> BodyShape:
        return BodyShape(bucket, self.max_num_seqs, self.buckets.most_outputs, len(self.layouts), self.block_size)

    def state(self) -> tuple[tuple[KVPool, ...], RowState]:
        """Empty KV pools (one per layer; those of several devices one after another along axis 0) and row state."""
        return make_pools(self.specs, self.layouts, self.num_blocks, self.num_devices), self.row_state()

    def row_state(self) -> RowState:
        """All rows idle. No token is counted more often than a request is long."""
        count_dtype = np.int16 if self.table_width * self.block_size < 2**15 else np.int32
        sizes = self.max_num_seqs, len(self.layouts), self.table_width
        return initial_row_state(*sizes, self.config.vocab_size, count_dtype)


@dataclass(frozen=True)
class Programs:
    """Compiled; called with arrays of just the shapes they were made for, anything else is an error."""

    initial_state: Compiled
    bodies: dict[int, Compiled]  # by T
    samples: dict[tuple[int, bool], Compiled]  # by S and whether all rows want just the best token
    prompt_logprobs: Compiled
    reset_row: Compiled
    set_rules: Compiled
    copy_blocks: Compiled
    gather_blocks: tuple[Compiled, ...]  # per layer group, with a host tier
    scatter_blocks: tuple[Compiled, ...]

    @property
    def of_steps(self) -> Iterator[Compiled]:
        """All that run while requests do."""
        yield from self.bodies.values()
        yield from self.samples.values()
        yield self.prompt_logprobs
        yield self.reset_row
        yield self.set_rules
        yield self.copy_blocks
        yield from self.gather_blocks
        yield from self.scatter_blocks

    def __len__(self) -> int:
        return 1 + len(list(self.of_steps))

    def ready(self, buckets: Buckets) -> Buckets:
        """Those whose bodies are there, and heads for all rows and for rows of the best token alone."""
        return replace(
            buckets,
            tokens=tuple(bucket for bucket in buckets.tokens if bucket in self.bodies),
            outputs=tuple(size for size in buckets.outputs if {(size, True), (size, False)} <= self.samples.keys()),
        )


def compile_programs(
    shapes: ProgramShapes,
    params: Any,
    head_weight: Any,
    sharding: NamedSharding,
    on_progress: Callable[[str, int, int], None],
) -> Programs:
    """Compiles all, largest first, several at a time. `params`, `head_weight`: arrays, or their ShapeDtypeStructs.

    on_progress(name, done, total) is called as each is finished. Raises what the first failing compilation raises.
    """
    jobs = dict(lowerings(shapes, params, head_weight, sharding))
    return assemble(shapes, compile_all(jobs, sharding, on_progress))


def late_keys(shapes: ProgramShapes, keys: Iterable[Key], *, with_largest: bool) -> set[Key]:
    """What a server can begin without: all bodies but the smallest that has a token for each row, and all heads but the
    largest. with_largest: nor without the largest body, which needs most memory."""
    buckets = shapes.buckets
    first = {
        buckets.tokens_for(min(shapes.max_num_seqs, buckets.tokens[-1])),
        *(buckets.tokens[-1:] if with_largest else ()),
    }

    def is_late(kind: str, size: Any) -> bool:
        return (kind == "body" and size not in first) or (kind == "sample" and size[0] != buckets.outputs[-1])

    return {key for key in keys if is_late(*key)}


def assemble(shapes: ProgramShapes, compiled: Mapping[Key, Compiled]) -> Programs:
    """compiled: all that `lowerings` names; those of `late_keys` may be missing."""
    bodies, samples = (
        {key: program for (kind, key), program in compiled.items() if kind == wanted} for wanted in ("body", "sample")
    )
    prompt_logprobs = compiled["prompt_logprobs", shapes.buckets.most_outputs]
    kinds = ("initial_state", "reset_row", "set_rules", "copy_blocks")
    initial, reset, rules, copy = (compiled[kind, shapes.max_num_seqs] for kind in kinds)
    groups = range(len(shapes.host_slots))
    gathers, scatters = (tuple(compiled[kind, group] for group in groups) for kind in ("gather", "scatter"))
    return Programs(initial, bodies, samples, prompt_logprobs, reset, rules, copy, gathers, scatters)


def compile_all(
    jobs: dict[Key, Callable[[], Lowered]],
    sharding: NamedSharding,
    on_progress: Callable[[str, int, int], None],
) -> dict[Key, Compiled]:
    """Compiles what `jobs` lower, in their order, several at a time; `on_progress` as in compile_programs."""
    return make_all(compilations(jobs, sharding, "start-up"), on_progress)


def compilations(
    jobs: Mapping[Key, Callable[[], Lowered]], sharding: NamedSharding, reason: str
) -> dict[Key, Callable[[], Compiled]]:
    """What compiles each of `jobs`; it is counted under `reason`."""

    def compile_one(lower: Callable[[], Lowered]) -> Compiled:
        with LOG.expect(reason):
            return compile_program(lower, sharding)

    return {key: functools.partial(compile_one, lower) for key, lower in jobs.items()}


def make_all(
    makers: Mapping[Key, Callable[[], Compiled]], on_progress: Callable[[str, int, int], None]
) -> dict[Key, Compiled]:
    """The programs, made in their order, several at a time; raises what the first failing one raises."""
    programs = {}
    with ThreadPoolExecutor(max_workers=num_threads()) as pool:
        futures = {pool.submit(make): key for key, make in makers.items()}
        for done, future in enumerate(as_completed(futures), start=1):
            kind, key = futures[future]
            programs[kind, key] = future.result()
            on_progress(f"{kind} {key}", done, len(makers))
    return programs


def num_threads() -> int:
    """That compile or load programs."""
    return min(MAX_THREADS, os.cpu_count() or 1)


def lowerings(
    shapes: ProgramShapes, params: Any, head_weight: Any, sharding: NamedSharding
) -> Iterator[tuple[Key, Callable[[], Lowered]]]:
    """((kind, key), a function that traces and lowers the program), the slowest first."""
    config = shapes.config
    state, pools = jax.eval_shape(shapes.state), pool_sharding(shapes, sharding)
    kv_caches, rows = _abstract(state[0], pools), _abstract(state[1], sharding)
    several = mesh_of(sharding) if shapes.num_devices > 1 else None
    plan = attention_plan(config, shapes.backend, shapes.layouts, several)
    forward = FAMILIES[config.family].forward
    jit = functools.partial(jax.jit, out_shardings=sharding)
    for bucket in reversed(shapes.buckets.tokens):
        shape = shapes.body(bucket)
        body = make_body(forward, config, plan, shape)
        body = jax.jit(body, donate_argnums=(1, 2), out_shardings=(sharding, pools, sharding))
        packed = shape.packing.abstract(sharding)
        arguments = (params, kv_caches, rows.block_tables, rows.last_tokens, packed)
        yield ("body", bucket), functools.partial(body.lower, *arguments)
    axis = RULES["vocab"] if several else None
    on_each = functools.partial(_on_each_device, mesh=several)
    rows_per_tile = ROWS_PER_TILE.get(mesh_of(sharding).devices.flat[0].platform, 1)
    hidden_shape = (shapes.buckets.most_outputs, config.hidden_size)
    hidden = jax.ShapeDtypeStruct(hidden_shape, shapes.dtype, sharding=sharding)
    for size in reversed(shapes.buckets.outputs):
        for greedy in (False, True):
            packing = sample_packing(size)
            sample = make_sample(
                config,
                packing,
                greedy=greedy,
                processed_logprobs=shapes.processed_logprobs,
                num_drafts=shapes.num_speculative_tokens,
                rows_per_tile=rows_per_tile,
                axis=axis,
            )
            sample = jit(on_each(sample), donate_argnums=2 if greedy else (4, 5))
            masks = jax.ShapeDtypeStruct((size, mask_words(config.vocab_size)), np.int32, sharding=sharding)
            if greedy:
                arguments = (head_weight, hidden, rows.last_tokens, packing.abstract(sharding))
            else:
                state = (rows.sampling, rows.rules, rows.counts, rows.last_tokens)
                arguments = (head_weight, hidden, *state, packing.abstract(sharding), masks)
            yield ("sample", (size, greedy)), functools.partial(sample.lower, *arguments)
    size = shapes.buckets.most_outputs
    packing = prompt_logprobs_packing(size)
    head = jit(on_each(make_prompt_logprobs(config, packing, rows_per_tile=rows_per_tile, axis=axis)))
    yield ("prompt_logprobs", size), functools.partial(head.lower, head_weight, hidden, packing.abstract(sharding))
    yield ("initial_state", shapes.max_num_seqs), jax.jit(lambda: shapes.state(), out_shardings=(pools, sharding)).lower
    reset = jit(functools.partial(reset_row, packing=shapes.reset_packing), donate_argnums=(0, 1))
    arguments = (rows.block_tables, rows.sampling, shapes.reset_packing.abstract(sharding))
    yield ("reset_row", shapes.max_num_seqs), functools.partial(reset.lower, *arguments)
    rules = jit(functools.partial(set_rules, packing=shapes.rules_packing), donate_argnums=(0, 1))
    arguments = (rows.rules, rows.counts, shapes.rules_packing.abstract(sharding))
    yield ("set_rules", shapes.max_num_seqs), functools.partial(rules.lower, *arguments)
    packing = shapes.copy_packing
    copy = functools.partial(copy_blocks, packing=packing, specs=shapes.specs)
    if several:  # each in its own pools
        copy = jax.shard_map(copy, mesh=several, in_specs=(pools.spec, sharding.spec), out_specs=pools.spec)
    copy = jax.jit(copy, donate_argnums=0, out_shardings=pools)
    yield ("copy_blocks", shapes.max_num_seqs), functools.partial(copy.lower, kv_caches, packing.abstract(sharding))
    if shapes.host_slots:
        yield from _host_lowerings(shapes, kv_caches, sharding)


def _on_each_device(head: Callable, mesh: Mesh | None) -> Callable:
    """A head as each device of `mesh` runs it, with its part of the head's weight; all of them return the same."""
    if mesh is None:
        return head
    everywhere = PartitionSpec()

    def shared(head_weight: Array, *others: Any) -> Any:
        specs = (PartitionSpec(RULES["vocab"]), *(everywhere for _ in others))
        run = jax.shard_map(head, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False)
        return run(head_weight, *others)

    return shared


def pool_sharding(shapes: ProgramShapes, sharding: NamedSharding) -> NamedSharding:
    """Each device has pools of its own heads."""
    return sharding if shapes.num_devices == 1 else NamedSharding(sharding.mesh, PartitionSpec(RULES["kv_heads"]))


def _host_lowerings(
    shapes: ProgramShapes, kv_caches: tuple[KVPool, ...], sharding: NamedSharding
) -> Iterator[tuple[Key, Callable[[], Lowered]]]:
    gather, scatter = jax.jit(gather_blocks), jax.jit(scatter_blocks, donate_argnums=0)
    packed = PACKING.abstract(sharding)
    for group, (spec, layout) in enumerate(zip(shapes.specs, shapes.layouts, strict=True)):
        pools = tuple(kv_caches[layer] for layer in spec.layers)
        staged = _abstract(staged_spec(spec, layout), sharding)
        yield ("gather", group), functools.partial(gather.lower, pools, packed)
        yield ("scatter", group), functools.partial(scatter.lower, pools, staged, packed)


def _abstract(tree: Any, sharding: NamedSharding) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
