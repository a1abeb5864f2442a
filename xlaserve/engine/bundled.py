"""Programs from a bundle, or compiled where there is none that fits."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from xlaserve.config import Config, QuantizationName
from xlaserve.engine.reporter import Reporter
from xlaserve.errors import ConfigError
from xlaserve.runner.bundle import BundleMismatch, open_bundle, read_manifest
from xlaserve.runner.compilations import LOG
from xlaserve.runner.dtype import setting_of
from xlaserve.runner.manifest import manifest_of
from xlaserve.runner.programs import Key, ProgramShapes, compilations, late_keys, make_all

Maker = Callable[[], Compiled]

_UNDECIDED = (None, "auto")


def adopted(config: Config, reporter: Reporter) -> Config:
    """Where the config leaves open what the programs depend on, what the bundle was built for; else it is the config.

    Raises ConfigError for a folder that is no bundle, where only a bundle will do.
    """
    folder = config.compile.bundle
    if folder is None:
        return config
    try:
        shapes = read_manifest(folder).shapes
        found: dict[str, dict[str, Any]] = {
            "model": {
                "dtype": shapes["dtype"],
                "quantization": (shapes["quantization"] or {"name": "none"})["name"],
                "max_model_len": min(
                    shapes["table_width"] * shapes["block_size"], shapes["config"]["max_position_embeddings"]
                ),
            },
            "cache": {"dtype": setting_of(shapes["kv_dtype"])},
            "scheduler": {
                "max_num_seqs": shapes["max_num_seqs"], "max_num_batched_tokens": shapes["buckets"]["tokens"][-1],
            },
            # auto is native code where there can be; where not, the programs are others, and that is a mismatch
            "kernels": {} if shapes["backend"] == "cpu_native" else {"attention_backend": shapes["backend"]},
        }  # fmt: skip
        if config.speculative.method is not None and shapes["num_speculative_tokens"]:
            found["speculative"] = {"num_speculative_tokens": shapes["num_speculative_tokens"]}
        if not any(getattr(config.cache, key) for key in ("num_blocks", "memory", "memory_utilization")):
            found["cache"]["num_blocks"] = max(shapes["num_blocks"])
    except BundleMismatch as error:
        _refuse_or_tell(config, error, reporter)
        return config
    except (LookupError, TypeError, ValueError) as error:
        _refuse_or_tell(config, BundleMismatch(f"{folder}: its manifest lacks {error}"), reporter)
        return config
    if config.model.dtype == "float32" or found["model"]["quantization"] not in get_args(QuantizationName):
        del found["model"]["quantization"]  # then auto is none, or the checkpoint's own
    sections = {}
    for name, values in found.items():
        section = getattr(config, name)
        open_ones = {key: value for key, value in values.items() if getattr(section, key) in _UNDECIDED}
        sections[name] = section.model_copy(update=open_ones)
    return config.model_copy(update=sections)


@dataclass(frozen=True)
class Source:
    """What makes each program: of those to begin with, and of those that may come later."""

    first: dict[Key, Maker]
    late: dict[Key, Maker]
    bundle: Path | None = None  # None: they are compiled
    instead: "Source | None" = None  # where what is in the bundle cannot be loaded


def program_source(
    config: Config,
    shapes: ProgramShapes,
    jobs: dict[Key, Callable[[], Lowered]],
    sharding: NamedSharding,
    reporter: Reporter,
    *,
    with_largest: bool,
) -> Source:
    """with_largest: see `late_keys`. Raises ConfigError for a bundle that does not fit, where only a bundle will do."""
    late = late_keys(shapes, jobs, with_largest=with_largest)
    folder, serve_early = config.compile.bundle, config.compile.serve_early
    apart = late if serve_early else set()
    compiler = Source(
        compilations({key: job for key, job in jobs.items() if key not in apart}, sharding, "start-up"),
        compilations({key: job for key, job in jobs.items() if key in apart}, sharding, "background"),
    )
    if folder is None:
        return compiler
    try:
        makers = open_bundle(folder, manifest_of(shapes, sharding), jobs)
    except BundleMismatch as error:
        _refuse_or_tell(config, error, reporter)
        return compiler
    apart = set() if serve_early is False else late
    first = {key: make for key, make in makers.items() if key not in apart}
    return Source(first, {key: makers[key] for key in makers if key in apart}, folder, compiler)


def make_first(source: Source, config: Config, reporter: Reporter) -> tuple[dict[Key, Compiled], dict[Key, Maker]]:
    """The programs to begin with, and what makes the others. Raises as `program_source`."""

    def progress(_name: str, done: int, total: int) -> None:
        reporter.progress("programs", done, total)

    try:
        programs = make_all(source.first, progress)
    except BundleMismatch as error:
        _refuse_or_tell(config, error, reporter)
        assert source.instead is not None
        return make_first(source.instead, config, reporter)
    found = f"{sum(LOG.compiled().values())} compilations, {LOG.cache_hits()} found in the compilation cache"
    if source.bundle is not None:
        found = f"of the bundle {source.bundle}"
    if source.late:
        found += f"; {len(source.late)} more come while these serve (compile.serve_early)"
    reporter.info("programs", len(programs), found)
    return programs, source.late


def _refuse_or_tell(config: Config, error: BundleMismatch, reporter: Reporter) -> None:
    if config.compile.bundle_strict:
        raise ConfigError(f"compile.bundle: {error}") from error
    reporter.info("bundle", "not used", str(error))
