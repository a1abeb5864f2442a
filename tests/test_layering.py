"""The rules of docs/architecture.md on who may import whom, and proof that each of them can fail."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import Sources

ROOT = Path(__file__).parent.parent
MAX_LINES = 400

# A module's layer is that of the longest name here that it begins with. Imports stay in their layer or point down.
LAYERS = {
    "xlaserve_kernels": 0,
    "xlaserve.errors": 1,
    "xlaserve.config": 1,
    "xlaserve.grammar": 1,
    "xlaserve.sampling_params": 1,
    "xlaserve.scheduling_params": 1,
    "xlaserve.sharding": 1,
    "xlaserve.speculative_config": 1,
    "xlaserve.targets": 1,
    "xlaserve.core": 2,
    "xlaserve.layers": 3,
    "xlaserve.models": 4,
    "xlaserve.runner": 5,
    "xlaserve.engine": 6,
    "xlaserve.server": 7,
    "xlaserve.bench": 7,
    "xlaserve.cli": 8,
}
FACADE = (
    "xlaserve"  # offers LLM, so it reaches up to the engine; from below the server nothing may come back through it
)
FACADE_USERS = 7

# These run where no device is: the scheduler in tests of milliseconds, the text side in another process.
NO_JAX = (
    "xlaserve.core",
    "xlaserve.engine.tokenizer",
    "xlaserve.engine.output_processor",
    "xlaserve.engine.simulation",
    "xlaserve.runner.commands",
    "xlaserve.server.workers.program",
)
JAX = ("jax", "jaxlib", "flax", "xlaserve_kernels")
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}


def belongs(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def layer_of(module: str) -> int | None:
    """None: not ours."""
    if module == FACADE:
        return FACADE_USERS
    known = [prefix for prefix in LAYERS if belongs(module, prefix)]
    if not known and belongs(module, FACADE):
        raise AssertionError(f"{module}: in no layer; add it to LAYERS and to docs/architecture.md")
    return LAYERS[max(known, key=len)] if known else None


def upward_imports(sources: Sources) -> Iterator[str]:
    for module, imports in sources.imports.items():
        layer = layer_of(module)
        for imported in imports:
            target = layer_of(imported.target)
            if module != FACADE and layer is not None and target is not None and target > layer:
                yield f"{module}:{imported.line}: layer {layer} imports {imported.target} of layer {target}"


def ways_to_jax(sources: Sources) -> Iterator[str]:
    for module in sources.imports:
        if any(belongs(module, prefix) for prefix in NO_JAX):
            for target, way in sources.closure(module).items():
                if target.split(".")[0] in JAX:
                    yield " -> ".join(way)


def torch_imports(sources: Sources) -> Iterator[str]:
    for module, imports in sources.imports.items():
        for imported in imports:
            if imported.target.split(".")[0] in ("torch", "torchvision"):
                yield f"{module}:{imported.line}: imports {imported.target}"


def environment_reads(sources: Sources) -> Iterator[str]:
    """Uses of os.environ and the like outside the CLI, however they are imported."""
    for module in sources.texts:
        if belongs(module, "xlaserve.cli"):
            continue
        for node in ast.walk(sources.tree(module)):
            match node:
                case ast.Attribute(value=ast.Name("os"), attr=name) if name in ENVIRONMENT:
                    yield f"{module}:{node.lineno}: os.{name}"
                case ast.ImportFrom(module="os", names=names) if ENVIRONMENT & {alias.name for alias in names}:
                    yield f"{module}:{node.lineno}: {ast.unparse(node)}"


def long_files(lengths: dict[str, int]) -> list[str]:
    return [f"{name}: {length} lines" for name, length in lengths.items() if length > MAX_LINES]


@pytest.fixture(scope="module")
def tree() -> Sources:
    return Sources.read(ROOT / "xlaserve", ROOT / "kernels" / "xlaserve_kernels")


@pytest.mark.parametrize("rule", [upward_imports, ways_to_jax, torch_imports, environment_reads])
def test_the_tree_keeps(rule, tree):
    assert len(tree.texts) > 50
    assert list(rule(tree)) == []


def test_no_file_is_too_long():
    folders = ("xlaserve", "kernels", "tests", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert long_files({str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}) == []


def test_core_and_the_text_side_run_without_jax():
    """The same rule in a live process, which also sees what other packages import."""
    modules = ("core.scheduler", "core.block_manager", "core.outputs", "runner.commands")
    modules += ("engine.tokenizer", "engine.output_processor", "server.workers.program")
    imports = ";".join(f"import xlaserve.{module}" for module in modules)
    script = f"import sys;{imports};print([m for m in ('jax', 'jaxlib', 'flax', 'torch') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (shown.stdout.strip(), shown.stderr) == ("[]", "")


def sources(**texts: str) -> Sources:
    """Made-up modules: underscores in the names stand for dots."""
    return Sources({name.replace("__", "."): text for name, text in texts.items()}, frozenset({"xlaserve"}))


UPWARD = [
    dict(xlaserve__core__a="from xlaserve.runner.commands import Body"),
    dict(xlaserve__core__a="from xlaserve import models", xlaserve__models=""),
    dict(xlaserve__core__a="from ..engine import llm_engine"),
    dict(xlaserve__layers__a="def f():\n    import xlaserve.models.llama"),
    dict(xlaserve__config="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import xlaserve.core.step"),
    dict(xlaserve__engine__a="try:\n    import xlaserve.server.app\nexcept ImportError:\n    pass"),
    dict(xlaserve__runner__a="from xlaserve import LLM"),
    dict(xlaserve_kernels__a="import xlaserve.errors"),
]
DOWNWARD = [
    dict(xlaserve__engine__a="import jax\nfrom xlaserve.runner.commands import Body\nfrom xlaserve.engine import b"),
    dict(xlaserve="def f():\n    from xlaserve.engine.llm import LLM"),
    dict(xlaserve__server__a="import xlaserve\nfrom xlaserve import SamplingParams"),
    dict(xlaserve__layers__a="from xlaserve_kernels.paged_attention import api"),
]


@pytest.mark.parametrize("texts", UPWARD, ids=str)
def test_an_upward_import_is_found(texts):
    assert len(list(upward_imports(sources(**texts)))) == 1


@pytest.mark.parametrize("texts", DOWNWARD, ids=str)
def test_a_downward_import_is_not(texts):
    assert list(upward_imports(sources(**texts))) == []


def test_a_module_in_no_layer_is_found():
    with pytest.raises(AssertionError, match=r"xlaserve\.utils: in no layer"):
        list(upward_imports(sources(xlaserve__utils="import math")))


@pytest.mark.parametrize(
    ("texts", "way"),
    [
        (dict(xlaserve__core__a="import jax.numpy as jnp"), "xlaserve.core.a -> jax"),
        (dict(xlaserve__core__a="def f():\n    from flax import struct"), "xlaserve.core.a -> flax"),
        (
            dict(
                xlaserve__engine__output_processor="from xlaserve.engine import detokenizer",
                xlaserve__engine__detokenizer="import jax",
            ),
            "xlaserve.engine.output_processor -> xlaserve.engine.detokenizer -> jax",
        ),
        (
            dict(xlaserve__core__a="x = 1", xlaserve__core="from xlaserve_kernels import backend"),
            "xlaserve.core.a -> xlaserve.core -> xlaserve_kernels",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_way_to_jax_is_found(texts, way):
    assert any(found.startswith(way) for found in ways_to_jax(sources(**texts)))


def test_imports_that_never_run_are_no_way_to_jax():
    lazy = "def __getattr__(name):\n    import jax"  # the package is on the way, its function is not called
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax\nimport xlaserve.errors"
    assert list(ways_to_jax(sources(xlaserve=lazy, xlaserve__core__a=typing, xlaserve__errors=""))) == []


def test_torch_is_found():
    (found,) = torch_imports(sources(xlaserve__models__a="x = 1\ndef f():\n    from torch.nn import Linear"))
    assert found == "xlaserve.models.a:3: imports torch.nn"


@pytest.mark.parametrize("text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_reading_the_environment_is_found(text):
    assert len(list(environment_reads(sources(xlaserve__engine__a=text)))) == 1
    assert list(environment_reads(sources(xlaserve__cli__a=text))) == []


def test_another_environ_is_not_the_environment():
    assert list(environment_reads(sources(xlaserve__server__a="from flask import request\nrequest.environ['A']"))) == []


def test_a_long_file_is_found():
    assert long_files({"a.py": MAX_LINES, "b.py": MAX_LINES + 1}) == ["b.py: 401 lines"]
