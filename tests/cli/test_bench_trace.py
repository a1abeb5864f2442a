"""xlaserve bench trace over a tiny model in this process, offline and over HTTP."""

import json
import shutil
from collections import Counter

import pytest
from click.testing import CliRunner

from tests import tiny_models
from tests.server.tiny_server import SETTINGS, vocabulary
from tests.toys import write_tokenizer
from xlaserve.cli.main import main
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.runner.compilations import use_no_persistent_cache


@pytest.fixture
def bench(tmp_path, cache_dir, monkeypatch):
    """Sends `num_prompts` requests; returns the command's outcome and the events by name."""
    shutil.copytree(tiny_models.folder("llama"), tmp_path, dirs_exist_ok=True)
    write_tokenizer(vocabulary(), tmp_path)
    monkeypatch.setenv("XLASERVE_CACHE", str(cache_dir))

    def run(*arguments: object):
        settings = [f"--set={name}={json.dumps(value)}" for name, value in SETTINGS.items()]
        sizes = ["--input-len", "5", "--output-len", "6"]
        out = tmp_path / "trace.json"
        command = ["bench", "trace", "--model", str(tmp_path), *settings, *sizes, "--out", str(out)]
        done = CliRunner().invoke(main, [*command, *map(str, arguments)])
        assert done.exit_code == 0, done.output
        events = json.loads(out.read_text())
        return done, Counter(event["name"].split()[0] for event in events if event["ph"] == "X")

    yield run
    use_no_persistent_cache()


def test_offline(bench, tmp_path):
    step = LLMEngine.step
    done, events = bench("--num-prompts", 3, "--plot", tmp_path / "trace.png")
    assert "gap between steps" in done.stdout
    assert (tmp_path / "trace.png").stat().st_size > 1000
    assert events["body"] == events["sample"] >= 6  # tokens of each answer
    assert events["step"] == events["schedule"] == events["body"] + 1  # the last one launches nothing
    assert 3 <= events["make"] <= 3 * 6  # a late reader gets several tokens at once
    assert LLMEngine.step is step


def test_over_http(bench):
    done, events = bench("--num-prompts", 2, "--over-http")
    assert "on other threads: events of a stream" in done.stdout
    assert events["body"] >= 6
    assert events["events"] >= 2


def test_a_folder_that_is_not_there():
    done = CliRunner().invoke(main, ["bench", "trace", "--out", "/none/trace.json"])
    assert "--out /none/trace.json: there is no folder /none" in done.stderr
