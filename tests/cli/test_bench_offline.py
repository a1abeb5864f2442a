"""xlaserve bench throughput and latency over a toy engine in this process."""

import json

import pytest
from click.testing import CliRunner, Result

from tests.server.toy_service import make_toy_service
from xlaserve.cli.main import main
from xlaserve.engine import build


@pytest.fixture
def toy(monkeypatch):
    """The configs that a service was asked for, and each one's."""
    made = []

    def build_service(config, *, cache_dir, reporter):
        service, runner = make_toy_service(b"HELLO")
        made.append((config, service, runner))
        return service

    monkeypatch.setattr(build, "build_service", build_service)
    yield made
    for _, service, runner in made:
        assert service.shutdown(timeout=10)
        assert runner.violations == []


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_throughput(toy, tmp_path):
    file = tmp_path / "run.json"
    done = bench("throughput", "--num-prompts", 12, "--input-len", 20, "--output-len", 9, "--json", file)
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert (report["num_requests"], report["total_num_tokens"]) == (12, 12 * 29)
    assert report["tokens_per_second"] / report["output_tokens_per_second"] == pytest.approx(29 / 9)
    assert report["requests_per_second"] * report["elapsed_time"] == pytest.approx(12)
    assert f"{report['tokens_per_second']:.3f}" in done.stdout
    ((config, service, _),) = toy
    assert config.server.max_waiting >= 1000
    assert service.stats()["running"] == 0


def test_texts_of_a_file_are_whole(toy, tmp_path):
    file, prompts = tmp_path / "run.json", tmp_path / "custom.jsonl"
    prompts.write_text('{"prompt": "one two"}\n{"prompt": "three", "output_tokens": 3}\n')
    options = ("--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", 2, "--json", file)
    assert bench("throughput", *options).exit_code == 0
    num_tokens = sum(len(toy[0][1].tokenizer.encode(text)) for text in ("one two", "three"))
    assert num_tokens > 3  # words
    assert json.loads(file.read_text())["total_num_tokens"] == num_tokens + 2 + 3


def test_latency(toy, tmp_path):
    file = tmp_path / "run.json"
    sizes = ("--batch-size", 3, "--input-len", 4, "--output-len", 5, "--num-iters-warmup", 1, "--num-iters", 4)
    done = bench("latency", *sizes, "--json", file)
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert len(report["latencies"]) == 4
    assert min(report["latencies"]) <= report["percentiles"]["50"] <= max(report["latencies"])
    assert report["output_tokens_per_second"] == pytest.approx(15 / report["percentiles"]["50"])
    assert toy[0][0].cache.prefix_caching is False


def test_a_prompt_that_is_too_long_is_refused(toy):
    done = bench("latency", "--input-len", 200)
    assert done.exit_code == 2
    assert "maximum context length" in done.stderr


def test_a_folder_that_is_not_there():
    assert "there is no folder" in bench("latency", "--json", "/none/run.json").stderr
