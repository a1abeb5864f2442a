"""What is decided of a deployment before anything is compiled: the model, the settings, the sizes of its programs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Lowered

from xlaserve.config import Config
from xlaserve.core.host_pool import HostTier
from xlaserve.engine.host_tier import host_tier
from xlaserve.engine.machine import Machine
from xlaserve.engine.quantization import stored_formats
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.settings import Settings, resolve_settings
from xlaserve.engine.sizing import Sizing, size_pools
from xlaserve.engine.tokenizer import Tokenizer, load_tokenizer, sampling_defaults
from xlaserve.errors import ConfigError
from xlaserve.layers.params import ArraySpec, map_specs
from xlaserve.models import sources
from xlaserve.models.checkpoint import Checkpoint
from xlaserve.models.config import ModelConfig, parse_config
from xlaserve.models.loader import check_tensors, untie_differing_head
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.runner.program_memory import ProgramMemory, probe_memory, tree_bytes
from xlaserve.runner.programs import Key, ProgramShapes, lowerings
from xlaserve.sharding import replicated, sharding_of


@dataclass(frozen=True)
class Model:
    """What is known of a model before its weights are read."""

    checkpoint: Checkpoint
    config: ModelConfig
    specs: Any  # a tree of ArraySpec
    tokenizer: Tokenizer
    sampling_defaults: dict[str, Any]


@dataclass(frozen=True)
class Deployment:
    """What is decided before anything is compiled."""

    config: Config
    model: Model
    specs: Any  # of its weights as they are kept: a tree of ArraySpec with QuantizedArrays
    mesh: Mesh
    settings: Settings
    sizing: Sizing
    host: HostTier | None
    jobs: dict[Key, Callable[[], Lowered]]  # all programs, by what lowers them


def decide(config: Config, machine: Machine, mesh: Mesh, cache_dir: Path, reporter: Reporter) -> Deployment:
    """mesh: of the machine's devices. Raises ConfigError or CheckpointError naming what is wrong."""
    if config.models:
        raise ConfigError(f"models: {', '.join(config.models)}: only a server has several; say the one by `model`")
    reporter.phase("open the model")
    model = _open(config, cache_dir, reporter)
    if mesh.size > 1 and config.cache.host_memory is not None:
        raise ConfigError(f"cache.host_memory: blocks of {mesh.size} devices cannot go to the host: set it to null")
    settings = resolve_settings(config, model.config, machine, reporter, stored_formats(model.checkpoint))
    reporter.phase("size the KV pool")
    specs = settings.stored(model.specs, mesh)
    sharding, weights = replicated(mesh), abstract_weights(specs, settings.dtype, mesh)

    def probe(shapes: ProgramShapes) -> ProgramMemory:
        return probe_memory(shapes, weights, head_weight(weights), sharding)

    sizing = size_pools(config, settings, tree_bytes(weights), machine.memory, probe, reporter)
    host = host_tier(config.cache, sizing, weights, machine.platform, reporter)
    if host:
        sizing = replace(sizing, shapes=replace(sizing.shapes, host_slots=host.num_slots))
    jobs = dict(lowerings(sizing.shapes, weights, head_weight(weights), sharding))
    return Deployment(config, model, specs, mesh, settings, sizing, host, jobs)


def _open(config: Config, cache_dir: Path, reporter: Reporter) -> Model:
    checkpoint = sources.resolve(config.model, cache_dir=cache_dir, seed=config.seed, announce=reporter.phase)
    model = parse_config(checkpoint.config, checkpoint.where)
    specs = FAMILIES[model.family].param_specs(model)
    if isinstance(checkpoint, RandomCheckpoint):
        checkpoint = checkpoint.with_specs(specs)
    check_tensors(specs, checkpoint)
    model = untie_differing_head(model, checkpoint)
    specs = FAMILIES[model.family].param_specs(model)
    tokenizer = load_tokenizer(checkpoint.folder, checkpoint.gguf_metadata, chat_template=config.model.chat_template)
    source = config.model.generation_config
    defaults = sampling_defaults(checkpoint.generation_config) if source == "auto" else {}
    shown = ", ".join(f"{name} {value}" for name, value in defaults.items())
    reporter.info("sampling defaults", shown or "OpenAI's", f"model.generation_config: {source}")
    return Model(checkpoint, model, specs, tokenizer, defaults)


def abstract_weights(specs: Any, dtype: np.dtype, mesh: Mesh) -> Any:
    """Their ShapeDtypeStructs in a model of `dtype`, shared by the mesh's devices."""

    def abstract(_: str, spec: ArraySpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype or dtype, sharding=sharding_of(mesh, spec.axes))

    return map_specs(abstract, specs)
