"""Engines whose programs come from a bundle: nothing is compiled, and what is generated is the same."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import ids
from tests.tiny_models import LENGTHS, prompts
from xlaserve import LLM, SamplingParams
from xlaserve.config import Config, load_config
from xlaserve.engine.build import build_bundle
from xlaserve.engine.machine import Machine
from xlaserve.engine.reporter import SilentReporter
from xlaserve.errors import ConfigError
from xlaserve.runner.bundle import read_manifest
from xlaserve.runner.compilations import LOG
from xlaserve.runner.manifest import Build
from xlaserve.sharding import make_mesh

SETTINGS = {
    "model.dtype": "float32",
    "scheduler.max_num_seqs": 4,
    "scheduler.max_num_batched_tokens": 8,
    "cache.num_blocks": 40,
}


def overrides(**more) -> list[str]:
    settings = {"model.source": tiny_models.folder("llama")} | more
    return [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, cache_dir) -> Path:
    """Built by another process, with the command."""
    folder = tmp_path_factory.mktemp("bundles") / "llama"
    settings = [part for setting in overrides(**SETTINGS) for part in ("--set", setting)]
    command = "from xlaserve.cli.main import main; main(prog_name='xlaserve')"
    arguments = [sys.executable, "-c", command, "build", *settings, "--out", str(folder)]
    environment = os.environ | {"XLASERVE_CACHE": str(cache_dir)}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(folder)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    assert f"{len(manifest.programs)} programs, {num_bytes / 1e6:.1f} MB" in done.stderr
    return folder


class Told(SilentReporter):
    def __init__(self):
        self.infos: dict[str, tuple[object, str]] = {}

    def info(self, key: str, value: object, reason: str) -> None:
        self.infos[key] = (value, reason)


@contextmanager
def start(cache_dir: Path, **settings) -> "Iterator[tuple[LLM, Told]]":
    told = Told()
    with LLM(overrides=overrides(**settings), cache_dir=cache_dir, reporter=told) as llm:
        yield llm, told


@pytest.mark.parametrize("given", [{}, SETTINGS], ids=["adopted", "as built"])
def test_nothing_is_compiled_and_the_ids_are_transformers(bundle, cache_dir, given):
    """What the config leaves open is as the bundle has it."""
    before = LOG.compiled(), LOG.cache_hits()
    with start(cache_dir, compile__bundle=bundle, compile__bundle_strict="true", **given) as (llm, told):
        found = ids(llm.generate(prompts(LENGTHS), SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)))
        assert llm.service.late.wait(60)
        assert llm.service.startup.buckets() == (4, 8)
    assert found == tiny_models.greedy("llama", LENGTHS)
    assert (LOG.compiled(), LOG.cache_hits()) == before
    assert str(bundle) in told.infos["programs"][1]
    assert told.infos["max_num_seqs"][0] == 4


@pytest.mark.parametrize(("early", "num_late"), [("null", 1), ("true", 1), ("false", 0)])
def test_the_larger_body_is_loaded_while_the_smaller_one_serves(bundle, cache_dir, early, num_late):
    loaded = LOG.loaded()
    with start(cache_dir, compile__bundle=bundle, compile__serve_early=early) as (llm, told):
        assert llm.service.late.wait(60)
    assert LOG.loaded() == loaded + len(read_manifest(bundle).programs) == loaded + told.infos["programs"][0] + num_late


def test_a_program_that_cannot_be_loaded_is_compiled(bundle, cache_dir, monkeypatch):
    """As on a processor that lacks what the bundle's has: digests and versions are right, and yet it does not run."""

    def refuse(*_: object) -> None:
        raise RuntimeError("compiled for another processor")

    monkeypatch.setattr("xlaserve.runner.bundle.deserialize_and_load", refuse)
    with start(cache_dir, compile__bundle=bundle, **SETTINGS) as (llm, told):
        found = ids(llm.generate(prompts(LENGTHS), SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)))
    assert found == tiny_models.greedy("llama", LENGTHS)
    assert "compiled for another processor" in told.infos["bundle"][1]
    with (
        pytest.raises(ConfigError, match="compiled for another processor"),
        start(cache_dir, compile__bundle=bundle, compile__bundle_strict="true", **SETTINGS),
    ):
        pass


OTHERS = {
    "cache.num_blocks": ({"cache__num_blocks": 41}, "shapes.num_blocks is [40], here it is [41]"),
    "rows": ({"scheduler__max_num_seqs": 5}, "shapes.max_num_seqs is 4, here it is 5"),
    "block_size": ({"cache__block_size": 8, "cache__num_blocks": 80}, "shapes.block_size is 16, here it is 8"),
    "another model": ({"model.source": tiny_models.folder("qwen3")}, "shapes.config"),
}


@pytest.mark.parametrize(("settings", "told"), OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit_is_refused_or_compiled_afresh(bundle, cache_dir, settings, told):
    with (
        pytest.raises(ConfigError, match=r"compile\.bundle: ") as refused,
        start(cache_dir, compile__bundle=bundle, compile__bundle_strict="true", **settings),
    ):
        pass
    assert told in str(refused.value)


def test_a_bundle_that_does_not_fit_is_told_and_not_used(bundle, cache_dir):
    with start(cache_dir, compile__bundle=bundle, **SETTINGS | {"cache.num_blocks": 41}) as (llm, told):
        found = ids(llm.generate(prompts(LENGTHS), SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)))
    assert found == tiny_models.greedy("llama", LENGTHS)
    assert told.infos["bundle"][0] == "not used"
    assert "num_blocks" in told.infos["bundle"][1]


@pytest.mark.parametrize("content", [None, b"{}"], ids=["no folder", "no manifest"])
def test_what_is_no_bundle(tmp_path, cache_dir, content):
    if content is not None:
        (tmp_path / "bundle").mkdir()
        (tmp_path / "bundle" / "manifest.json").write_bytes(content)
    strict = {"compile__bundle": tmp_path / "bundle", "compile__bundle_strict": "true"}
    with pytest.raises(ConfigError, match=r"compile\.bundle: .*bundle"), start(cache_dir, **strict):
        pass


def build_here(config: Config, folder: Path, cache_dir: Path) -> None:
    mesh = make_mesh()
    build_bundle(
        config,
        folder,
        build=Build(),
        machine=Machine.here(mesh),
        mesh=mesh,
        cache_dir=cache_dir,
        reporter=SilentReporter(),
    )


def test_a_folder_that_cannot_be_written(tmp_path, cache_dir, bundle):
    config = load_config(None, overrides(**SETTINGS))
    with pytest.raises(ConfigError, match="exists already"):
        build_here(config, bundle, cache_dir)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        build_here(config, tmp_path / "file" / "bundle", cache_dir)
