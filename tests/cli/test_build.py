"""`xlaserve build --target` where no compiler for it is installed, and what it is given."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.engine.test_settings import SIZES
from xlaserve import targets
from xlaserve.cli import options
from xlaserve.cli.main import main
from xlaserve.errors import ConfigError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `xlaserve build`, with a model's config.json at hand: (exit code, standard error)."""
    monkeypatch.setattr(targets, "find_spec", lambda module: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    (tmp_path / "deployment.yaml").write_text(f"model: {{source: 'random:{tmp_path}/config.json'}}")

    def build(*arguments: str) -> tuple[int, str]:
        given = [argument.replace("DIR", str(tmp_path)) for argument in arguments]
        result = CliRunner().invoke(main, ["build", *given, "--out", str(tmp_path / "bundle")])
        assert not (tmp_path / "bundle").exists()
        return result.exit_code, result.stderr

    return build


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["DIR/config.json", "--target", "tpu-v5e-8"], "v5e-8: its compiler is not installed here; it comes with lib"),
        (["DIR/deployment.yaml", "--target", "h100"], "h100x1: its compiler is not installed here; it comes with jax"),
        (["DIR/config.json", "--target", "h300"], "target 'h300': must be one of cpu, tpu-v5e-1"),
        (["DIR/config.json", "--model", "demo"], "The model is given twice"),
        (["DIR/deployment.yaml", "--config", "x.yaml"], "The configuration is given twice"),
        (["DIR/none.json", "--target", "cpu"], "none.json"),
    ],
    ids=["TPU", "GPU", "unknown", "two models", "two configurations", "no file"],
)  # fmt: skip
def test_what_cannot_be_built_is_named(run, arguments, told):
    code, error = run(*arguments)
    assert (code, told in error) == (2, True), error


def test_jax_looks_for_no_device(monkeypatch):
    monkeypatch.setattr(os, "environ", {"JAX_PLATFORMS": "tpu"})
    options.look_for_no_device()
    assert os.environ["JAX_PLATFORMS"] == "cpu"


def test_the_share_of_a_card_is_what_jax_is_told(monkeypatch):
    for value, share in ((None, 0.75), ("0.9", 0.9), ("", 0.75)):
        monkeypatch.setattr(os, "environ", {} if value is None else {"XLA_PYTHON_CLIENT_MEM_FRACTION": value})
        assert options.gpu_share() == share
    for value in ("1.5", "0", "all"):
        monkeypatch.setattr(os, "environ", {"XLA_PYTHON_CLIENT_MEM_FRACTION": value})
        with pytest.raises(ConfigError, match=f"XLA_PYTHON_CLIENT_MEM_FRACTION is '{value}'"):
            options.gpu_share()


def test_flags_of_compilers_are_told(monkeypatch):
    monkeypatch.setattr(os, "environ", {"XLA_FLAGS": "--a", "LIBTPU_INIT_ARGS": "", "HOME": "/"})
    assert options.compiler_flags() == {"XLA_FLAGS": "--a"}
