"""xlaserve bench scheduler: options in, tables, JSON and a picture out."""

import json
import sys

import pytest
from click.testing import CliRunner, Result

from xlaserve.cli.main import main

SMALL = ("--requests", "40", "--set", "cache.num_blocks=200", "--set", "model.max_model_len=1024")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "scheduler", *map(str, arguments)])


def test_the_tables_and_the_json_agree(tmp_path):
    file = tmp_path / "run.json"
    done = bench(*SMALL, "--tenant", "small=1", "--tenant", "large=4", "--json", file)
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert report["sizes"]["num_blocks"] == 200
    assert report["requests"] == {"finished": {"length": 40}, "refused": 0}
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert f"{1000 * report['latency_s']['time to first token']['p90']:.1f}" in lines["time to first token"]
    assert f"{report['throughput']['requests_per_s']:.1f}" in lines["requests/s"]
    assert f"{100 * report['memory']['internal_waste']:.2f}%" in lines["internal waste"]
    assert f"{report['concurrency']['while_queued']:.1f}" in lines["running"]
    assert {"small", "large"} <= set(lines)
    assert "simulated in" in done.stderr


def test_a_trace(tmp_path):
    trace, file = tmp_path / "trace.jsonl", tmp_path / "run.json"
    trace.write_text(
        '{"prompt_tokens": 4, "output_tokens": 3}\n{"prompt_tokens": 9, "output_tokens": 1, "arrival": 9}\n'
    )
    done = bench("--trace", trace, "--step-ms", 5, "--token-us", 0, "--context-ns", 0, "--json", file)
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert report["costs"] == {"step_ms": 5, "token_us": 0, "context_ns": 0}
    assert report["seconds"] == pytest.approx(9.005)
    assert report["latency_s"]["inter-token latency"]["p99"] == pytest.approx(0.005)


def test_a_workload_is_changed_by_options(tmp_path):
    file = tmp_path / "run.json"
    lengths = ("--prompt-tokens", 8, "--output-tokens", 2, "--prefix-tokens", 32, "--prefixes", 3, "--rate", 100)
    assert bench("--workload", "shared-prefix", "--requests", 5, *lengths, "--json", file).exit_code == 0
    report = json.loads(file.read_text())
    tenant = report["tenants"][""]
    assert (tenant["requests"], tenant["served_tokens"]) == (5, 5 * 42 - 2 * 32)
    assert tenant["time_to_first_token_s"] == report["latency_s"]["time to first token"]


def test_costs_from_a_file(tmp_path):
    costs = tmp_path / "costs.json"
    sizes = [(64, 1000, 3.0), (64, 9000, 4.0), (256, 1000, 5.0)]
    costs.write_text(json.dumps([dict(zip(("padded_tokens", "context_tokens", "ms"), s, strict=True)) for s in sizes]))
    assert bench(*SMALL, "--costs", costs).exit_code == 0


def test_the_plot(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "run.png"
    assert bench(*SMALL, "--plot", file).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 20_000


def test_without_matplotlib_the_plot_is_refused_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = bench(*SMALL, "--plot", tmp_path / "run.png")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "pip install 'xlaserve[bench]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--trace", "missing.jsonl"], "missing.jsonl"),
        (["--trace", "a.jsonl", "--rate", "3"], "--trace and --rate: choose one"),
        (["--trace", "a.jsonl", "--prompt-tokens", "3"], "--trace and --prompt-tokens: choose one"),
        (["--costs", "a.json", "--step-ms", "3"], "--costs and --step-ms: choose one"),
        (["--tenant", "small"], "NAME=LOAD"),
        (["--tenant", "small=0"], "'small' is 0"),
        (["--rate", "nan"], "rate is nan"),
        (["--requests", "0"], "--requests"),
        (["--workload", "other"], "shared-prefix"),
        (["--output-tokens", "0"], "mean length is 0"),
        (["--prefix-tokens", "5000"], "leaves no room"),
        (["--step-ms", "-1"], "step_ms is -1"),
        (["--set", "cache.blocksize=8"], "cache.block_size"),
        (["--set", "cache.memory=1GiB"], "cache.num_blocks"),
        (["--json", "missing/run.json"], "no folder missing"),
    ],
    ids=str,
)
def test_wrong_options_are_told(arguments, told):
    done = bench(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
