"""Programs from a bundle, or compiled where there is none that fits."""

from collections.abc import Callable
from typing import Any

import jax
from jax.stages import Lowered
from xlaserve_kernels.backend import available

from xlaserve.config import Config
from xlaserve.engine.reporter import Reporter
from xlaserve.errors import ConfigError
from xlaserve.runner.bundle import BundleMismatch, load_bundle, manifest_of, read_manifest
from xlaserve.runner.compilations import LOG
from xlaserve.runner.programs import Key, Programs, ProgramShapes, assemble, compile_all

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
                "max_model_len": min(
                    shapes["table_width"] * shapes["block_size"], shapes["config"]["max_position_embeddings"]
                ),
            },
            "cache": {"dtype": shapes["kv_dtype"]},
            "scheduler": {
                "max_num_seqs": shapes["max_num_seqs"], "max_num_batched_tokens": shapes["buckets"]["tokens"][-1],
            },
            "kernels": {"attention_backend": shapes["backend"]} if _has(shapes["backend"]) else {},
        }  # fmt: skip
        if not any(getattr(config.cache, key) for key in ("num_blocks", "memory", "memory_utilization")):
            found["cache"]["num_blocks"] = max(shapes["num_blocks"])
    except BundleMismatch as error:
        _refuse_or_tell(config, error, reporter)
        return config
    except (LookupError, TypeError, ValueError) as error:
        _refuse_or_tell(config, BundleMismatch(f"{folder}: its manifest lacks {error}"), reporter)
        return config
    sections = {}
    for name, values in found.items():
        section = getattr(config, name)
        open_ones = {key: value for key, value in values.items() if getattr(section, key) in _UNDECIDED}
        sections[name] = section.model_copy(update=open_ones)
    return config.model_copy(update=sections)


def _has(backend: str) -> bool:
    """Else the programs of this machine are others, and that is a mismatch."""
    return backend in available(jax.devices()[0].platform)


def load_or_compile(
    config: Config,
    shapes: ProgramShapes,
    jobs: dict[Key, Callable[[], Lowered]],
    sharding: jax.sharding.Sharding,
    reporter: Reporter,
) -> Programs:
    """Raises ConfigError for a bundle that does not fit, where only a bundle will do."""

    def progress(_name: str, done: int, total: int) -> None:
        reporter.progress("programs", done, total)

    folder = config.compile.bundle
    if folder is not None:
        try:
            programs = load_bundle(folder, manifest_of(shapes, sharding), jobs, progress)
        except BundleMismatch as error:
            _refuse_or_tell(config, error, reporter)
        else:
            reporter.info("programs", len(programs), f"of the bundle {folder}")
            return assemble(shapes, programs)
    programs = assemble(shapes, compile_all(jobs, sharding, progress))
    found = f"{sum(LOG.compiled().values())} compilations, {LOG.cache_hits()} found in the compilation cache"
    reporter.info("programs", len(programs), found)
    return programs


def _refuse_or_tell(config: Config, error: BundleMismatch, reporter: Reporter) -> None:
    if config.compile.bundle_strict:
        raise ConfigError(f"compile.bundle: {error}") from error
    reporter.info("bundle", "not used", str(error))
