"""The native kernels in an engine: loaded before the backend is chosen, and told of when they cannot be."""

import shutil

import pytest
from xlaserve_kernels.backend import resolve
from xlaserve_kernels.native import library, loaded

from tests import tiny_models
from tests.engine.test_bundled import Told
from tests.engine.test_end_to_end import greedy, ids, start
from tests.tiny_models import LENGTHS, prompts
from xlaserve.config import KernelsSection
from xlaserve.engine.native_kernels import load_native
from xlaserve.errors import ConfigError

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, library.COMPILERS)), reason="there is no C++ compiler")


@needs_compiler
def test_auto_takes_them_where_there_is_a_compiler(cache_dir):
    told = Told()
    load_native(KernelsSection(), cache_dir / "native", told)
    assert told.infos["native kernels"][0] == library.best_level()
    assert resolve("auto", "cpu") == "cpu_native"


@needs_compiler
@pytest.mark.parametrize("instructions", library.levels())
def test_ids_are_those_of_transformers_with_any_instructions(instructions, cache_dir):
    with start("gemma3", cache_dir, kernels__cpu_instructions=instructions) as llm:
        library_used = loaded()
        assert library_used is not None
        assert library_used.level == instructions
        assert ids(llm.generate(prompts(LENGTHS), greedy())) == tiny_models.greedy("gemma3", LENGTHS)


def test_without_a_compiler_there_is_xla_and_a_line_that_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_libraries", {})
    monkeypatch.setattr(library, "_current", None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    told = Told()
    load_native(KernelsSection(), tmp_path, told)
    assert told.infos["native kernels"] == ("none", "no C++ compiler: none of c++, g++, clang++ is on the path")
    assert resolve("auto", "cpu") == "xla"
    with pytest.raises(
        ValueError, match=r"'cpu_native' is not available on cpu: choose auto, xla, pallas_tpu_interpret"
    ):
        resolve("cpu_native", "cpu")


def test_another_backend_loads_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "load", lambda *_: pytest.fail("compiled for nothing"))
    told = Told()
    load_native(KernelsSection(attention_backend="xla"), tmp_path, told)
    assert told.infos == {}


def test_instructions_that_are_none(cache_dir):
    with pytest.raises(ConfigError, match=r"kernels.cpu_instructions: level 'mmx': this processor has .*plain"):
        load_native(KernelsSection(cpu_instructions="mmx"), cache_dir / "native", Told())
