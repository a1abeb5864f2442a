"""From a Config to a running GenerationService."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jax.stages import Lowered

from xlaserve.config import Config
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.host_pool import HostTier
from xlaserve.core.policy import make_policy
from xlaserve.core.scheduler import Scheduler
from xlaserve.engine.bundled import adopted, load_or_compile
from xlaserve.engine.embeddings import pooling_of
from xlaserve.engine.host_tier import host_tier
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.reasoning import thinks
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.service import GenerationService, ModelInfo
from xlaserve.engine.settings import Settings, resolve_settings
from xlaserve.engine.sizing import Sizing, check_memory, size_pools
from xlaserve.engine.tokenizer import Tokenizer, eos_union, load_tokenizer, sampling_defaults
from xlaserve.engine.tool_parsers import parser_for
from xlaserve.errors import ConfigError
from xlaserve.layers.params import ArraySpec, map_specs
from xlaserve.models import sources
from xlaserve.models.checkpoint import Checkpoint
from xlaserve.models.config import ModelConfig, parse_config
from xlaserve.models.loader import check_tensors, load_params, untie_differing_head
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.runner.bundle import manifest_of, save_bundle
from xlaserve.runner.compilations import LOG, use_no_persistent_cache, use_persistent_cache
from xlaserve.runner.model_runner import ModelRunner
from xlaserve.runner.programs import Key, assemble, compile_all, lowerings
from xlaserve.sampling_params import PoolingType
from xlaserve.sharding import make_mesh, replicated, sharding_of


@dataclass(frozen=True)
class _Model:
    """What is known of a model before its weights are read."""

    checkpoint: Checkpoint
    config: ModelConfig
    specs: Any  # a tree of ArraySpec
    tokenizer: Tokenizer
    sampling_defaults: dict[str, Any]


@dataclass(frozen=True)
class _Deployment:
    """What is decided before anything is compiled."""

    config: Config
    model: _Model
    mesh: Mesh
    settings: Settings
    sizing: Sizing
    host: HostTier | None
    jobs: dict[Key, Callable[[], Lowered]]  # all programs, by what lowers them


def build_service(config: Config, *, cache_dir: Path, reporter: Reporter) -> GenerationService:
    """Compiles all programs or loads them from a bundle, loads the model and starts the engine's thread.

    Compiling takes no memory on the device, and tells whether all will fit: so it comes before the weights are read, as
    does the check of what their headers tell. Raises ConfigError or CheckpointError naming what is wrong.
    """
    use_persistent_cache(config.compile.cache_dir or cache_dir / "programs")
    decided = _decide(adopted(config, reporter), cache_dir, reporter)
    reporter.phase("compile the programs" if config.compile.bundle is None else "load the programs")
    shapes, mesh = decided.sizing.shapes, decided.mesh
    programs = load_or_compile(decided.config, shapes, decided.jobs, replicated(mesh), reporter)
    check_memory(decided.sizing, programs.of_steps, reporter)
    reporter.phase("load the weights")
    params = load_params(
        decided.model.specs,
        decided.model.checkpoint,
        dtype=decided.settings.dtype,
        place=lambda array, spec: jax.device_put(array, sharding_of(mesh, spec.axes)),
        on_progress=lambda done, total, name: reporter.progress("weights, bytes", done, total),
    )
    runner = ModelRunner(params, shapes, replicated(mesh), programs)
    return _start(decided, runner, reporter)


def build_bundle(config: Config, folder: Path, *, cache_dir: Path, reporter: Reporter) -> tuple[int, int]:
    """Writes the programs that `build_service` would compile to `folder`: their number, and the bytes they take.

    Of the weights only the headers are read. Raises as `build_service`, and ConfigError where it cannot be written.
    """
    use_no_persistent_cache()
    decided = _decide(config, cache_dir, reporter)
    shapes, sharding = decided.sizing.shapes, replicated(decided.mesh)
    reporter.phase("compile the programs")
    programs = compile_all(decided.jobs, sharding, lambda name, done, total: reporter.progress("programs", done, total))
    check_memory(decided.sizing, assemble(shapes, programs).of_steps, reporter)
    reporter.phase("write the bundle")
    try:
        save_bundle(folder, manifest_of(shapes, sharding), programs)
    except OSError as error:
        raise ConfigError(f"{folder}: the bundle cannot be written: {error}") from error
    return len(programs), sum(file.stat().st_size for file in folder.iterdir())


def _decide(config: Config, cache_dir: Path, reporter: Reporter) -> _Deployment:
    reporter.phase("open the model")
    model = _open(config, cache_dir, reporter)
    mesh = make_mesh()
    settings = resolve_settings(config, model.config, mesh, reporter)
    reporter.phase("size the KV pool")
    weights = _abstract_weights(model, settings, mesh)
    sizing = size_pools(config, settings, weights, replicated(mesh), reporter)
    host = host_tier(config.cache, sizing, weights, mesh.devices.flat[0].platform, reporter)
    if host:
        sizing = replace(sizing, shapes=replace(sizing.shapes, host_slots=host.num_slots))
    jobs = dict(lowerings(sizing.shapes, weights, head_weight(weights), replicated(mesh)))
    return _Deployment(config, model, mesh, settings, sizing, host, jobs)


def _open(config: Config, cache_dir: Path, reporter: Reporter) -> _Model:
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
    return _Model(checkpoint, model, specs, tokenizer, defaults)


def _abstract_weights(model: _Model, settings: Settings, mesh: Mesh) -> Any:
    def abstract(_: str, spec: ArraySpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(spec.shape, settings.dtype, sharding=sharding_of(mesh, spec.axes))

    return map_specs(abstract, model.specs)


def _start(decided: _Deployment, runner: ModelRunner, reporter: Reporter) -> GenerationService:
    """Scheduler, engine and its thread around a runner that is ready."""
    config, model, settings, sizing = decided.config, decided.model, decided.settings, decided.sizing
    shapes = sizing.shapes
    groups = [GroupSpec(n, spec.sliding_window) for n, spec in zip(shapes.num_blocks, shapes.specs, strict=True)]
    blocks = BlockManager(
        groups,
        shapes.block_size,
        max_step_tokens=settings.max_num_batched_tokens,
        prefix_caching=config.cache.prefix_caching,
        host=decided.host,
    )
    tenants = config.server.api_keys
    shown = ", ".join(f"{name} (weight {tenant.weight:g})" for name, tenant in tenants.items())
    reporter.info("scheduler.policy", config.scheduler.policy, f"tenants: {shown or 'one, for there are no API keys'}")
    scheduler = Scheduler(
        blocks,
        max_num_seqs=shapes.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        policy=make_policy(config.scheduler.policy, {name: tenant.weight for name, tenant in tenants.items()}),
        long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        max_outputs=settings.buckets.outputs[-1],
    )
    engine = LLMEngine(scheduler, runner, async_scheduling=config.scheduler.async_scheduling)
    checkpoint = model.checkpoint
    info = ModelInfo(
        name=config.model.served_name or sources.default_name(config.model.source),
        max_model_len=sizing.max_model_len,
        vocab_size=model.config.vocab_size,
        max_request_tokens=blocks.capacity,
        eos_ids=eos_union(model.tokenizer, checkpoint.config, checkpoint.generation_config),
        sampling_defaults=model.sampling_defaults,
        created=int(time.time()),
        tool_parser=_tool_parser(config, model.tokenizer, reporter),
        thinks=_thinks(config, model.tokenizer, reporter),
        takes_chat_template=config.server.allow_chat_template,
        pooling=_pooling(config, checkpoint.folder, reporter),
        hidden_size=model.config.hidden_size,
    )
    return GenerationService(
        engine,
        model.tokenizer,
        info,
        max_waiting=config.server.max_waiting,
        max_waiting_tokens=config.server.max_waiting_tokens,
        compiled=LOG.compiled,
        cache_hits=LOG.cache_hits,
    )


def _tool_parser(config: Config, tokenizer: Tokenizer, reporter: Reporter) -> str | None:
    asked = config.model.tool_parser
    found = parser_for(tokenizer.chat_template) if asked == "auto" else asked
    reporter.info("tool parser", found or "none", f"model.tool_parser: {asked}")
    return None if found == "none" else found


def _thinks(config: Config, tokenizer: Tokenizer, reporter: Reporter) -> bool:
    asked = config.model.reasoning_parser
    found = thinks(tokenizer.chat_template) if asked == "auto" else asked == "think"
    reporter.info("reasoning parser", "think" if found else "none", f"model.reasoning_parser: {asked}")
    return found


def _pooling(config: Config, folder: Path | None, reporter: Reporter) -> PoolingType:
    asked = config.model.pooling
    told = pooling_of(folder) if asked == "auto" else asked
    reporter.info("pooling of embeddings", told or "last", f"model.pooling: {asked}")
    return told or "last"
