"""xlaserve bench compare: ratios of made-up reports, and of live servers."""

import json

import pytest
from click.testing import CliRunner

from xlaserve.bench.comparison import compare
from xlaserve.bench.server_process import ServerFailed, serving
from xlaserve.cli.main import main


def test_ratios_are_of_each_round():
    rounds = [({"output_throughput": a}, {"output_throughput": b}) for a, b in ((10.0, 20.0), (40.0, 40.0), (5.0, 6.0))]
    assert compare(rounds) == {
        "output_throughput": {"a": 10.0, "b": 20.0, "ratio": 1.2, "ratio_min": 1.0, "ratio_max": 2.0}
    }


def test_a_figure_that_one_lacks_is_left_out():
    assert compare([({"median_itl_ms": 3.0}, {"median_itl_ms": None}), ({"median_itl_ms": 3.0}, {})]) == {}


def run(*arguments: object):
    sizes = ("--num-prompts", 3, "--input-len", 2, "--output-len", 4, "--rounds", 2)
    return CliRunner().invoke(main, ["bench", "compare", *map(str, (*arguments, *sizes))])


def test_two_servers_in_turns(make_live, tmp_path):
    first, second = make_live(b"HELLO"), make_live(b"WORLD")
    file = tmp_path / "run.json"
    done = run(first.url, second.url, "--json", file)
    assert done.exit_code == 0, done.output
    whole = json.loads(file.read_text())
    assert [[report["completed"] for report in pair] for pair in whole["rounds"]] == [[3, 3], [3, 3]]
    ratio = whole["compared"]["output_throughput"]["ratio"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("output_throughput"))
    assert f"{ratio:.3f}" in line
    assert done.stderr.count("round 2 of 2") == 2
    assert [server.service.stats()["running"] for server in (first, second)] == [0, 0]


def test_failures_end_it(make_live):
    done = run(make_live(b"HELLO").url, "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "127.0.0.1:9" in done.stderr


def test_a_server_that_does_not_start_is_told():
    with pytest.raises(ServerFailed, match="exit code 2"), serving(["--no-such-option"]):
        pass


def test_what_is_neither_a_server_nor_a_command_is_refused():
    for side in ("", "configs/demo.yaml", "run --port 1"):
        done = run(side, "serve")
        assert done.exit_code == 2
        assert "must be a URL" in done.stderr
