"""What a batch survives: a kill at any moment, a full disk, an input that is gone."""

import os
import shutil

import pytest

from tests.server.batching import counts, finished, jsonl, line, look, post, results, start
from tests.server.filing import content, uploaded
from tests.server.harness import wait_until
from xlaserve.server.batches import run

SLOW = {"script": b"x" * 500, "step_seconds": 0.003}


@pytest.mark.parametrize(
    "torn", [b"", b'{"id": "batch_req_1", "custom_id": "5", "resp', b'{"custom_id": "5"}', b"\x00" * 50]
)
def test_a_restart_in_the_middle_loses_and_doubles_no_line(keep, tmp_path, torn):
    server = keep(toy=SLOW)
    names = [str(n) for n in range(30)]
    data = jsonl(*(line(name, max_tokens=10) for name in names), line("wrong", n=0))
    batch_id = start(server, data)
    assert wait_until(lambda: look(server, batch_id)["request_counts"]["completed"] >= 5, 10)
    assert server.batches.stop(10)
    partial = tmp_path / "files" / "batches" / f"{batch_id}.output.jsonl"
    before = partial.read_bytes()
    assert before.endswith(b"\n")
    with open(partial, "ab") as file:
        file.write(torn)
    again = keep(toy=SLOW)
    batch = finished(again, batch_id)
    assert (batch["status"], counts(batch)) == ("completed", (31, 30, 1))
    assert set(results(again, batch)) == set(names)
    assert content(again, batch["output_file_id"]).startswith(before)
    assert set(results(again, batch, "error")) == {"wrong"}


def test_a_smaller_limit_of_bodies_after_a_restart_stops_no_batch(keep):
    server = keep(toy=SLOW)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=10, user="x" * 2000) for n in range(20))))
    assert wait_until(lambda: look(server, batch_id)["request_counts"]["completed"] >= 2, 10)
    assert server.batches.stop(10)
    again = keep(toy=SLOW | {"max_body": 1000})
    assert counts(finished(again, batch_id)) == (20, 20, 0)


def test_a_line_that_is_not_what_it_was_is_left_out(keep, tmp_path, caplog):
    server = keep(toy=SLOW)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=10) for n in range(20))))
    assert wait_until(lambda: look(server, batch_id)["request_counts"]["completed"] >= 2, 10)
    assert server.batches.stop(10)
    source = tmp_path / "files" / "files" / f"{look(server, batch_id)['input_file_id']}.data"
    lines = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join([*lines[:-1], b"{\n"]))
    again = keep(toy=SLOW)
    batch = finished(again, batch_id)
    assert (batch["status"], counts(batch)) == ("completed", (20, 19, 0))
    assert sum("is left out" in message for message in caplog.messages) == 1


def test_a_kill_at_any_write_is_survived(keep, tmp_path, monkeypatch):
    """Every state of the folder that a kill could leave is kept, and a server started over each of them."""
    server = keep(batch_lines=1)
    file_id = uploaded(server, jsonl(line("a"), line("wrong", n=0), line("b")))
    states = tmp_path / "states"
    states.mkdir()

    def keep_state() -> None:
        shutil.copytree(tmp_path / "files", states / f"{len(list(states.iterdir())):02d}")

    def watched(original):
        def write(*arguments):
            keep_state()
            original(*arguments)
            keep_state()

        return write

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", watched(os.replace))
        patch.setattr(run.Results, "append", watched(run.Results.append))
        batch_id = post(server, file_id).json["id"]
        finished(server, batch_id)
    kept = sorted(states.iterdir())
    assert len(kept) == 2 * (4 + 3 + 4)  # 4 statuses, 3 results, and two files of metadata and data each
    for state in kept:
        again = keep(folder=f"states/{state.name}")
        if again.get(f"/v1/batches/{batch_id}").status == 404:
            assert state == kept[0]
            continue
        batch = finished(again, batch_id)
        assert (batch["status"], counts(batch)) == ("completed", (3, 2, 1)), state
        assert set(results(again, batch)) == {"a", "b"}
        assert set(results(again, batch, "error")) == {"wrong"}
        assert len(again.get("/v1/files").json["data"]) == 3


def test_a_result_that_cannot_be_written_is_run_again(keep, monkeypatch, caplog):
    server = keep()
    monkeypatch.setattr("xlaserve.server.batches.runner.RETRY_SECONDS", 0.05)
    write, failures = os.write, iter([3, 0, 7])

    def fail(descriptor, data):
        part = next(failures, None) if bytes(data).startswith(b'{"id": "batch_req') else None
        if part is None:
            return write(descriptor, data)
        write(descriptor, bytes(data)[:part])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xlaserve.server.batches.run.os.write", fail)
    batch = finished(server, start(server, jsonl(*(line(str(n)) for n in range(5)), line("bad", n=0))))
    assert (batch["status"], counts(batch)) == ("completed", (6, 5, 1))
    assert set(results(server, batch)) == set("01234")
    assert sum("No space left" in message for message in caplog.messages) == 3


def test_an_input_removed_by_hand_fails_the_batch_at_the_restart(keep, tmp_path):
    server = keep(toy=SLOW)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=50) for n in range(100))))
    file_id = look(server, batch_id)["input_file_id"]
    assert server.batches.stop(10)
    (tmp_path / "files" / "files" / f"{file_id}.data").unlink()
    again = keep()
    batch = look(again, batch_id)
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "file_not_found")
    assert finished(again, start(again, jsonl(line("a"))))["status"] == "completed"
