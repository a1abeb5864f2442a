"""`xlaserve plan`: tables, JSON and comparisons, where no compiler is installed."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.engine.test_planning import LLAMA_8B
from tests.engine.test_settings import SIZES
from xlaserve import targets
from xlaserve.cli.main import main
from xlaserve.config import ModelSection
from xlaserve.errors import CheckpointError
from xlaserve.models import hub
from xlaserve.models.sources import read_config


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(targets, "find_spec", lambda module: None)
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"COLUMNS": "200"})

    def plan(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["plan", *arguments])

    return plan


def test_the_table(run):
    shown = run(str(LLAMA_8B), "--target", "h100")
    assert shown.exit_code == 0, shown.stderr
    assert "8,030,261,248" in shown.stdout
    assert "524.3 kB" in shown.stdout  # the textbook's, beside the true one
    assert "131.1 kB" in shown.stdout
    (pool,) = (line for line in shown.stdout.splitlines() if line.startswith("KV pool"))
    assert " ~" in pool
    assert pool.rstrip().endswith("estimated")
    (weights,) = (line for line in shown.stdout.splitlines() if line.startswith("weights"))
    assert "16.1 GB" in weights
    assert "estimated" not in weights
    assert "- Decoding is limited by bandwidth" in shown.stdout
    assert "~ marks what is estimated" in shown.stdout
    assert "nothing was executed" in shown.stdout


def test_json_is_what_the_table_says(run):
    shown = run(str(LLAMA_8B), "--target", "tpu-v5e-8", "--json")
    found = json.loads(shown.stdout)
    assert (found["target"], found["devices"], found["fits"], found["compiled"]) == ("tpu-v5e-8", 8, True, False)
    assert found["figures"]["kv_bytes_per_token"] == {"value": 131072, "unit": "bytes", "estimated": False}
    assert found["figures"]["device_kv_bytes_per_token"]["value"] == 131072 / 8
    assert found["figures"]["pool_bytes"]["estimated"] is True
    assert found["attention_backend"] == "pallas_tpu"
    assert found["advice"]


def test_targets_side_by_side(run):
    shown = run(str(LLAMA_8B), "--compare", "tpu-v5e-1,h100,h200x2")
    header, *_ = shown.stdout.splitlines()
    assert header.split() == ["tpu-v5e-1", "h100x1", "h200x2"]
    (blocks,) = (line for line in shown.stdout.splitlines() if line.startswith("blocks"))
    first, second, third = blocks.split()[1:]
    assert first == "-"  # 16 GB of weights in 15.75 GiB
    assert int(second.strip("~").replace(",", "")) < int(third.strip("~").replace(",", ""))
    assert "- tpu-v5e-1: " in shown.stdout
    found = json.loads(run(str(LLAMA_8B), "--compare", "h100,h200", "--json").stdout)
    assert [plan["target"] for plan in found] == ["h100x1", "h200x1"]


def test_settings_are_heeded(run):
    found = json.loads(run(str(LLAMA_8B), "--target", "h100", "--json", "--set", "scheduler.max_num_seqs=7").stdout)
    assert found["max_num_seqs"] == 7
    found = json.loads(run(str(LLAMA_8B), "--target", "h100", "--json", "--num-blocks", "1000").stdout)
    assert found["figures"]["num_blocks"] == {"value": [1000], "unit": "", "estimated": False}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Name a --target"),
        (["--target", "h300"], "target 'h300': must be one of"),
        (["--compare", "h100,h300"], "target 'h300': must be one of"),
        (["--target", "h100", "--set", "model.max_model_len=200000"], "model.max_model_len is 200000"),
    ],
    ids=["none", "unknown", "one unknown", "a setting"],
)
def test_what_cannot_be_planned_is_named(run, arguments, told):
    shown = run(str(LLAMA_8B), *arguments)
    assert (shown.exit_code, told in shown.stderr) == (2, True), shown.stderr


def test_a_folder_needs_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    for source in (str(tmp_path), f"random:{tmp_path}", f"random:{tmp_path}/config.json"):
        found, where = read_config(ModelSection(source=source), cache_dir=tmp_path)
        assert (found, where) == (SIZES, str(tmp_path / "config.json"))


def test_of_a_hub_id_nothing_else_is_downloaded(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    asked = []

    def fetch_file(repo: str, name: str, revision: str | None, announce: hub.Announce) -> Path:
        asked.append((repo, name, revision))
        return tmp_path / name

    monkeypatch.setattr(hub, "fetch_file", fetch_file)
    monkeypatch.setattr(hub, "fetch_folder", lambda *_: pytest.fail("all of it was downloaded"))
    found, _ = read_config(ModelSection(source="org/name", revision="main"), cache_dir=tmp_path)
    assert (found, asked) == (SIZES, [("org/name", "config.json", "main")])
    with pytest.raises(CheckpointError, match="no such file or folder"):
        read_config(ModelSection(source=str(tmp_path / "none")), cache_dir=tmp_path)
