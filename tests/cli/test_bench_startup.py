"""xlaserve bench startup: what a start tells of itself, and what is made of several."""

import json
import time

import pytest
from click.testing import CliRunner

from tests import tiny_models
from xlaserve.cli import startup_runs
from xlaserve.cli.main import main
from xlaserve.cli.startup_runs import Start, StartFailed, medians

SETTINGS = (
    f"model.source={tiny_models.folder('llama')}",
    *("model.dtype=float32", "model.max_model_len=64", "scheduler.max_num_seqs=1"),
    "scheduler.max_num_batched_tokens=4",
)


def test_a_start_in_a_process_of_its_own(cache_dir):
    began = time.time()
    start = startup_runs.run_once(None, [*SETTINGS, f"compile.cache_dir={cache_dir / 'programs'}"])
    took = time.time() - began
    names = [name for name, _, _ in start.spans]
    assert names == [
        *("start Python", "import", "load the native kernels", "open the model", "size the KV pool"),
        *("compile the programs", "load the weights", "start the engine", "first token"),
    ]
    starts = [begin for _, begin, _ in start.spans]
    assert starts == sorted(starts)
    assert all(begin <= end for _, begin, end in start.spans)
    assert starts[0] == 0
    assert start.spans[-1][2] == start.total < took
    assert start.compiled + start.cache_hits > 7
    assert start.loaded == 0


def test_a_start_that_fails_is_told(tmp_path):
    with pytest.raises(StartFailed, match=r"(?s)exit code 2: .*no such file or folder"):
        startup_runs.measure(None, ["model.source=/nowhere"], tmp_path, 1, lambda _: None)


def test_the_command(tmp_path, monkeypatch):
    """The cold start gets an empty cache each time, the warm one that of the first cold one, the bundle none."""
    caches: dict[str, list[str]] = {"cold": [], "warm cache": [], "bundle": []}
    built = []

    def run(command: list[str]) -> str:
        if "build" in command:
            built.append(command[-1])
            return ""
        settings = dict(argument.split("=", 1) for argument in command if "=" in argument)
        kind = "bundle" if settings.get("compile.bundle") in built else "cold"
        folder = settings["compile.cache_dir"]
        kind = "warm cache" if kind == "cold" and folder in caches["cold"] else kind
        caches[kind].append(folder)
        end = time.time() + {"cold": 8.0, "warm cache": 4.0, "bundle": 2.0}[kind]
        spans = [("import", time.time(), time.time()), ("first token", end - 1, end)]
        return "noise\n" + json.dumps({"spans": spans, "compiled": 16, "cache_hits": 0, "loaded": 0}) + "\n"

    monkeypatch.setattr(startup_runs, "_run", run)
    file = tmp_path / "startup.json"
    told = [part for setting in SETTINGS for part in ("--set", setting)]
    done = CliRunner().invoke(main, ["bench", "startup", *told, "--runs", "2", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert {kind: len(folders) for kind, folders in caches.items()} == {"cold": 2, "warm cache": 2, "bundle": 2}
    assert len(set(caches["cold"])) == 2
    assert set(caches["warm cache"]) == {caches["cold"][0]}
    assert not set(caches["bundle"]) & set(caches["cold"])
    report = json.loads(file.read_text())
    totals = {kind: round(found["total"]) for kind, found in report["kinds"].items()}
    assert totals == {"cold": 8, "warm cache": 4, "bundle": 2}
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("of the first kind's"))
    assert line.split()[-3:] == ["100%", "50%", "25%"]


def start(total: float, weights: float) -> Start:
    spans = (("import", 0.0, 1.0), ("load the weights", 1.0, 1.0 + weights), ("first token", total - 1, total))
    return Start(spans, total, 2, 3, 4)


def test_medians():
    found = medians([start(5, 1), start(9, 2), start(6, 3)])
    assert found["total"] == 6
    assert found["phases"] == {"import": [0, 1], "load the weights": [1, 3], "first token": [5, 6]}
    assert (found["compiled"], found["cache_hits"], found["loaded"]) == (2, 3, 4)


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from xlaserve.cli.startup_plot import save_waterfall

    found = {kind: medians([start(total, 1)]) for kind, total in (("cold", 60), ("warm cache", 9), ("bundle", 5))}
    save_waterfall(found, "Start-up", tmp_path / "startup.png")
    assert (tmp_path / "startup.png").read_bytes().startswith(b"\x89PNG")
