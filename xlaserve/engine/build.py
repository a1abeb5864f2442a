"""From a Config to a running GenerationService."""

import time
from math import prod
from pathlib import Path

import jax

from xlaserve.config import Config
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.policy import make_policy
from xlaserve.core.scheduler import Scheduler
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.service import GenerationService, ModelInfo
from xlaserve.engine.settings import resolve_settings
from xlaserve.engine.tokenizer import eos_union, load_tokenizer, sampling_defaults
from xlaserve.layers.params import named_specs
from xlaserve.models import sources
from xlaserve.models.config import parse_config
from xlaserve.models.loader import check_tensors, load_params, untie_differing_head
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.registry import FAMILIES
from xlaserve.runner.compilations import LOG, use_persistent_cache
from xlaserve.runner.model_runner import ModelRunner
from xlaserve.sharding import make_mesh, replicated, sharding_of


def build_service(config: Config, *, cache_dir: Path, reporter: Reporter) -> GenerationService:
    """Loads the model, compiles all programs and starts the engine's thread.

    Raises ConfigError or CheckpointError naming what is wrong; what headers tell is checked before weights are read.
    """
    use_persistent_cache(config.compile.cache_dir or cache_dir / "programs")
    reporter.phase("open the model")
    checkpoint = sources.resolve(config.model, cache_dir=cache_dir, seed=config.seed, announce=reporter.phase)
    model = parse_config(checkpoint.config, checkpoint.where)
    specs = FAMILIES[model.family].param_specs(model)
    if isinstance(checkpoint, RandomCheckpoint):
        checkpoint = checkpoint.with_specs(specs)
    check_tensors(specs, checkpoint)
    model = untie_differing_head(model, checkpoint)
    specs = FAMILIES[model.family].param_specs(model)
    tokenizer = load_tokenizer(checkpoint.folder, checkpoint.gguf_metadata, chat_template=config.model.chat_template)
    defaults = sampling_defaults(checkpoint.generation_config) if config.model.generation_config == "auto" else {}
    mesh = make_mesh()
    num_weights = sum(prod(spec.shape) for _, spec in named_specs(specs))
    settings = resolve_settings(config, model, num_weights, mesh, reporter)
    shapes = settings.shapes

    reporter.phase("load the weights")
    params = load_params(
        specs,
        checkpoint,
        dtype=shapes.dtype,
        place=lambda array, spec: jax.device_put(array, sharding_of(mesh, spec.axes)),
        on_progress=lambda done, total, name: reporter.progress("weights, bytes", done, total),
    )
    reporter.phase("compile the programs")
    runner = ModelRunner(
        params, shapes, replicated(mesh), lambda name, done, total: reporter.progress("programs", done, total)
    )
    found = f"{sum(LOG.compiled().values())} compilations, {LOG.cache_hits()} found in the compilation cache"
    reporter.info("programs", len(runner.programs), found)
    shown = ", ".join(f"{name} {value}" for name, value in defaults.items())
    reporter.info(
        "sampling defaults", shown or "OpenAI's", f"model.generation_config: {config.model.generation_config}"
    )

    blocks = BlockManager(
        [GroupSpec(shapes.num_blocks, spec.sliding_window) for spec in shapes.specs],
        shapes.block_size,
        max_step_tokens=settings.max_num_batched_tokens,
        prefix_caching=config.cache.prefix_caching,
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
    )
    engine = LLMEngine(scheduler, runner, async_scheduling=config.scheduler.async_scheduling)
    info = ModelInfo(
        name=config.model.served_name or sources.default_name(config.model.source),
        max_model_len=settings.max_model_len,
        vocab_size=model.vocab_size,
        max_request_tokens=blocks.capacity,
        eos_ids=eos_union(tokenizer, checkpoint.config, checkpoint.generation_config),
        sampling_defaults=defaults,
        created=int(time.time()),
    )
    return GenerationService(
        engine,
        tokenizer,
        info,
        max_waiting=config.server.max_waiting,
        max_waiting_tokens=config.server.max_waiting_tokens,
        compiled=LOG.compiled,
        cache_hits=LOG.cache_hits,
    )
