"""From a Config to a running GenerationService."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jax.stages import Compiled

from xlaserve.config import Config
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.ngram import NgramProposer
from xlaserve.core.policy import make_policy
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.speculation import Speculation
from xlaserve.core.step_costs import StepCosts
from xlaserve.engine.bundled import Maker, adopted, make_first, program_source
from xlaserve.engine.deployment import Deployment, decide
from xlaserve.engine.embeddings import pooling_of
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.machine import Machine
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.native_kernels import load_native
from xlaserve.engine.reasoning import thinks
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.service import GenerationService
from xlaserve.engine.settings import Settings
from xlaserve.engine.sizing import check_memory
from xlaserve.engine.startup import StartupClock, StartupFacts
from xlaserve.engine.tokenizer import Tokenizer, eos_union
from xlaserve.engine.tool_parsers import parser_for
from xlaserve.engine.weights_store import WeightsStore
from xlaserve.errors import ConfigError
from xlaserve.models import sources
from xlaserve.models.loader import load_params
from xlaserve.runner.bundle import save_bundle
from xlaserve.runner.compilations import LOG, use_no_persistent_cache, use_persistent_cache
from xlaserve.runner.compiler import compiler_options
from xlaserve.runner.late_programs import LatePrograms
from xlaserve.runner.manifest import Build, manifest_of
from xlaserve.runner.model_runner import ModelRunner
from xlaserve.runner.programs import Key, assemble, compile_all, num_threads
from xlaserve.sampling_params import PoolingType
from xlaserve.sharding import make_mesh, replicated, sharding_of


def build_service(
    config: Config, *, cache_dir: Path, reporter: Reporter, make_room: Callable[[int], None] = lambda _: None
) -> GenerationService:
    """Compiles the programs or loads them from a bundle, loads the model and starts the engine's thread.

    Compiling takes no memory on the device, and tells whether all will fit: so it comes before the weights are read, as
    does the check of what their headers tell. Where the device uses the host's memory there is nothing to check, and
    both are done at the same time. `make_room` gets the bytes of weights and KV pools before they are taken.

    Raises ConfigError or CheckpointError naming what is wrong, and what `make_room` raises.
    """
    _use_cache(config.compile.cache_dir or cache_dir / "programs", reporter)
    reporter = clock = StartupClock(reporter)
    config = adopted(config, reporter)
    load_native(config.kernels, cache_dir / "native", reporter)
    mesh = make_mesh()
    decided = decide(config, Machine.here(mesh), mesh, cache_dir, reporter)
    make_room(decided.sizing.weight_bytes + decided.sizing.pool.num_bytes)
    shapes, sharding = decided.sizing.shapes, replicated(mesh)
    is_checked = decided.sizing.memory is not None
    source = program_source(
        decided.config,
        shapes,
        decided.jobs,
        sharding,
        reporter,
        with_largest=is_checked,  # for it needs most memory
    )
    with ThreadPoolExecutor(max_workers=1) as beside:
        clock.phase("compile the programs" if source.bundle is None else "load the programs")
        weights = None if is_checked else beside.submit(_load_weights, decided, clock)
        first, late = make_first(source, config, reporter)
        programs = assemble(shapes, first)
        check_memory(decided.sizing, programs.of_steps, reporter, num_more=len(late))
        clock.end()
        params = _load_weights(decided, clock) if weights is None else weights.result()
    reporter.phase("start the engine")
    runner = ModelRunner(params, shapes, sharding, programs)
    service = _start(decided, runner, first, late, clock)
    clock.end()
    return service


def _use_cache(folder: Path, reporter: Reporter) -> None:
    try:
        use_persistent_cache(folder)
    except OSError as error:
        reporter.info("compilation cache", "none", f"{folder}: cannot be made: {error.strerror}")


def _load_weights(decided: Deployment, clock: StartupClock) -> Any:
    with clock.beside("load the weights"):
        return load_params(
            decided.specs,
            decided.model.checkpoint,
            dtype=decided.settings.dtype,
            place=lambda array, spec: jax.device_put(array, sharding_of(decided.mesh, spec.axes)),
            on_progress=lambda done, total, name: clock.progress("weights, bytes", done, total),
        )


def build_bundle(
    config: Config,
    folder: Path,
    *,
    build: Build,
    machine: Machine,
    mesh: Mesh,
    cache_dir: Path,
    reporter: Reporter,
) -> tuple[int, int]:
    """Writes the programs that `build_service` would compile to `folder`: their number, and their bytes.

    mesh: of the machine's devices, which need not be here. Of the weights only the headers are read. `build` is written
    down with the programs. Raises as `build_service`, and ConfigError where it cannot be written.
    """
    use_no_persistent_cache()
    if folder.exists():
        raise ConfigError(f"{folder}: exists already; name another folder, or delete it")
    if machine.platform == "cpu":
        load_native(config.kernels, cache_dir / "native", reporter)
    decided = decide(config, machine, mesh, cache_dir, reporter)
    shapes, sharding = decided.sizing.shapes, replicated(mesh)
    reporter.phase("compile the programs")
    programs = compile_all(decided.jobs, sharding, lambda name, done, total: reporter.progress("programs", done, total))
    check_memory(decided.sizing, assemble(shapes, programs).of_steps, reporter)
    reporter.phase("write the bundle")
    try:
        build = build.model_copy(update={"options": compiler_options(sharding)})
        save_bundle(folder, manifest_of(shapes, sharding).model_copy(update={"build": build}), programs)
    except OSError as error:
        raise ConfigError(f"{folder}: the bundle cannot be written: {error}") from error
    return len(programs), sum(file.stat().st_size for file in folder.iterdir())


def _start(
    decided: Deployment,
    runner: ModelRunner,
    programs: dict[Key, Compiled],
    late: dict[Key, Maker],
    reporter: StartupClock,
) -> GenerationService:
    """Scheduler, engine and its thread around a runner that has `programs`; those of `late` are made from now on."""
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
        max_outputs=settings.buckets.most_outputs,
        speculation=_speculation(config, settings),
    )

    def limit_steps() -> None:
        scheduler.max_num_batched_tokens = min(settings.max_num_batched_tokens, runner.buckets.tokens[-1])

    limit_steps()

    def join(key: Key, program: Compiled) -> None:
        """In this order: no step is to have more tokens than there is a body for."""
        programs[key] = program
        runner.use(assemble(shapes, programs))
        limit_steps()

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
    in_background = LatePrograms(late, join, max(1, num_threads() - 1))
    return GenerationService(
        engine,
        model.tokenizer,
        info,
        max_waiting=config.server.max_waiting,
        max_waiting_tokens=config.server.max_waiting_tokens,
        sleep_after=config.server.sleep_after,
        sleep_level=config.server.sleep_level,
        store=WeightsStore(
            runner, model.config, decided.specs, settings.dtype, decided.mesh, checkpoint, settings.quantization
        ),
        startup=StartupFacts(
            compiled=LOG.compiled,
            cache_hits=LOG.cache_hits,
            loaded=LOG.loaded,
            spans=lambda: reporter.spans,
            buckets=lambda: runner.buckets.tokens,
            late=in_background.status,
            weight_bytes=decided.sizing.weight_bytes,
            kv_pool_bytes=decided.sizing.pool.num_bytes,
        ),
        late=in_background,
    )


def _speculation(config: Config, settings: Settings) -> Speculation | None:
    num_drafts = settings.num_speculative_tokens
    if not num_drafts:
        return None
    proposer = NgramProposer(num_drafts, *config.speculative.lookup)
    return Speculation(proposer, StepCosts(settings.buckets.tokens), num_drafts)


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
