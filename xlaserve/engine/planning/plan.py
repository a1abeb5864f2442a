"""A plan: sizes by the engine's own settings and sizing; what programs need by the compiler, or estimated."""

import time
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from xlaserve.config import Config
from xlaserve.engine.deployment import abstract_weights
from xlaserve.engine.kv_budget import DEFAULT_UTILIZATION
from xlaserve.engine.machine import Machine
from xlaserve.engine.planning.estimate import compile_seconds, estimate_memory, num_programs
from xlaserve.engine.planning.floors import Floors, Step
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.settings import Settings, resolve_settings
from xlaserve.engine.sizing import Sizing, check_fits, size_pools
from xlaserve.errors import ConfigError
from xlaserve.layers.params import ArraySpec, named_specs, spec_bytes
from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.runner.kv_cache import vector_bytes
from xlaserve.runner.program_memory import PROBED, ProgramMemory, probe_memory
from xlaserve.runner.programs import ProgramShapes
from xlaserve.sharding import RULES, make_mesh, replicated
from xlaserve.targets import Target

LENGTHS = (512, 2048, 8192)  # tokens of a request
CONTEXT = 2048  # tokens, of the rows of a decode step


@dataclass(frozen=True)
class Plan:
    """Bytes are those of one device, if nothing else is said. None: it does not fit, or is not known."""

    target: Target
    settings: Settings
    num_params: int
    total_weight_bytes: int  # of all devices together, each weight once
    weight_bytes: int
    usable_bytes: int | None  # of a device's memory
    share: float  # of that, for weights, programs and pool together
    textbook_kv_bytes: int  # per token in all devices, had every query head keys and values of its own
    kv_bytes: int  # per token in all devices
    compiled: bool  # what programs need is by the target's compiler, else it is estimated
    pool_is_given: bool  # by the configuration
    problem: str | None = None  # why it does not fit
    programs: ProgramMemory | None = None
    sizing: Sizing | None = None
    compile_seconds: float | None = None
    decode: dict[int, Step] = field(default_factory=dict)  # by rows, each of CONTEXT tokens
    prefill: dict[int, Step] = field(default_factory=dict)  # by tokens of the prompt

    @property
    def pool_is_estimated(self) -> bool:
        """Its size follows from what programs need, unless it is given or taken of the host's memory."""
        return not (self.compiled or self.pool_is_given or self.usable_bytes is None)

    @property
    def num_programs(self) -> int | None:
        return num_programs(self.sizing.shapes) if self.sizing else None

    def held(self, length: int) -> int:
        """Requests of `length` tokens that the pool holds at once; 0 if that is longer than the context."""
        if self.sizing is None or length > self.sizing.max_model_len:
            return 0
        return self.sizing.pool.requests(length)

    def concurrency(self, length: int) -> int:
        """Of them those that can run at once."""
        return min(self.held(length), self.settings.max_num_seqs)


def make_plan(
    config: Config, model: ModelConfig, target: Target, *, gpu_share: float, num_cores: int, compiled: bool,
    reporter: Reporter,
) -> Plan:  # fmt: skip
    """num_cores: of the machine that will compile. compiled: so are the largest programs now, to see what they need.

    Raises ConfigError for settings that cannot be, whatever the memory. A model that does not fit is a plan that says
    so.
    """
    machine = Machine.of(target, gpu_share)
    settings = resolve_settings(config, model, machine, reporter)
    specs: Any = FAMILIES[model.family].param_specs(model)
    stored = settings.stored(specs)
    asked, of_a_vector = config.cache.memory_utilization, vector_bytes(model.head_dim, settings.kv_dtype)
    plan = Plan(
        target=target,
        settings=settings,
        num_params=sum(prod(spec.shape) for _, spec in named_specs(specs)),
        total_weight_bytes=spec_bytes(stored, settings.dtype),
        weight_bytes=sum(
            spec_bytes(spec, settings.dtype) // _num_parts(spec, target.num_devices) for _, spec in named_specs(stored)
        ),
        usable_bytes=machine.memory.total if machine.memory else None,
        share=DEFAULT_UTILIZATION if asked is None else asked,
        textbook_kv_bytes=2 * model.num_layers * model.hidden_size * settings.kv_dtype.itemsize,
        kv_bytes=2 * model.num_layers * model.num_kv_heads * of_a_vector,
        compiled=compiled,
        pool_is_given=config.cache.num_blocks is not None or config.cache.memory is not None,
    )
    probe = _Probe(settings, target, num_cores, compiled)
    try:
        sizing = size_pools(config, settings, plan.weight_bytes, machine.memory, probe, reporter)
        programs = probe.found or probe(sizing.shapes)
        check_fits(sizing, programs)
    except ConfigError as error:
        return replace(plan, problem=str(error), programs=probe.found)
    seconds = probe.compile_seconds(sizing.shapes)
    return replace(_with_floors(plan, sizing), sizing=sizing, programs=programs, compile_seconds=seconds)


def _num_parts(spec: ArraySpec, num_devices: int) -> int:
    """Into which the devices cut it."""
    return num_devices if any(axis is not None and RULES[axis] is not None for axis in spec.axes) else 1


def _with_floors(plan: Plan, sizing: Sizing) -> Plan:
    settings = plan.settings
    of_a_vector = vector_bytes(settings.model.head_dim, settings.kv_dtype)
    floors = Floors.of(settings.model, plan.target, settings.dtype, of_a_vector, settings.quantization)
    if floors is None:
        return plan
    context = min(CONTEXT, sizing.max_model_len)
    rows = {1, max(1, min(sizing.pool.requests(context), settings.max_num_seqs))}
    lengths = [length for length in LENGTHS if length <= sizing.max_model_len]
    return replace(
        plan,
        decode={count: floors.decode(count, context) for count in sorted(rows)},
        prefill={length: floors.prefill(length, settings.max_num_batched_tokens) for length in lengths},
    )


class _Probe:
    """What programs need beside pools and weights. `found`: what it has told last."""

    def __init__(self, settings: Settings, target: Target, num_cores: int, compiled: bool):
        self._settings, self._target, self._num_cores, self._compiled = settings, target, num_cores, compiled
        self.found: ProgramMemory | None = None
        self._seconds = 0.0  # that compiling took

    def __call__(self, shapes: ProgramShapes) -> ProgramMemory:
        self.found = self._compile(shapes) if self._compiled else estimate_memory(shapes, self._target.platform)
        return self.found

    def compile_seconds(self, shapes: ProgramShapes) -> float:
        """Of all programs: an estimate, also from what some took."""
        if self._seconds:
            return self._seconds / PROBED * num_programs(shapes)
        return compile_seconds(shapes, self._target.platform, self._num_cores)

    def _compile(self, shapes: ProgramShapes) -> ProgramMemory:
        start = time.monotonic()
        mesh = make_mesh(self._target.devices())
        specs: Any = FAMILIES[shapes.config.family].param_specs(shapes.config)
        weights = abstract_weights(self._settings.stored(specs, mesh), self._settings.dtype, mesh)
        found = probe_memory(shapes, weights, head_weight(weights), replicated(mesh))
        self._seconds = time.monotonic() - start
        return found
