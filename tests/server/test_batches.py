"""/v1/batches: validation, results, cancellation, expiry and tenants."""

import random
import time

import pytest

from tests.server.batching import CHAT, COMPLETIONS, counts, finished, jsonl, line, look, post, results, start
from tests.server.filing import TENANTS, as_tenant, uploaded
from tests.server.harness import wait_until
from xlaserve.server.batches import batch_store


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
def test_results_are_what_the_endpoint_answers(keep, url):
    server = keep()
    extra = {"logprobs": 2} if url == COMPLETIONS else {"logprobs": True, "top_logprobs": 2}
    data = jsonl(*(line(f"r{n}", url, max_tokens=1 + n) for n in range(4)), line("all", url, n=2, **extra))
    batch = finished(server, start(server, data, endpoint=url, metadata={"run": "1"}))
    assert (batch["status"], counts(batch), batch["error_file_id"]) == ("completed", (5, 5, 0), None)
    assert batch["metadata"] == {"run": "1"}
    assert batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"] < batch["expires_at"]
    found = results(server, batch)
    for custom_id, body in [("r2", {"max_tokens": 3}), ("all", {"n": 2, **extra})]:
        response = found[custom_id]["response"]
        ask = server.complete if url == COMPLETIONS else server.chat
        expected = ask(**body).json
        assert (response["status_code"], found[custom_id]["error"]) == (200, None)
        assert response["request_id"] == response["body"]["id"]
        assert response["body"] | {"id": "", "created": 0} == expected | {"id": "", "created": 0}
    shown = server.get(f"/v1/files/{batch['output_file_id']}").json
    assert (shown["purpose"], shown["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")


def test_lines_that_the_endpoint_refuses_are_errors_of_theirs(keep):
    server = keep()
    wrong = {"bad": {"temperature": -1}, "model": {"model": "other"}, "long": {"prompt": "x" * 90_000}, "who": {"x": 1}}
    data = jsonl(line("good"), *(line(name, **body) for name, body in wrong.items()), line("also good"))
    batch = finished(server, start(server, data))
    assert (batch["status"], counts(batch)) == ("completed", (6, 2, 4))
    assert set(results(server, batch)) == {"good", "also good"}
    errors = results(server, batch, "error")
    assert set(errors) == set(wrong)
    for name, error in errors.items():
        expected = server.complete(**wrong[name])
        assert error["response"]["status_code"] == expected.status
        assert error["response"]["body"] == expected.json
        assert error["error"] is None


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        (b"{not json}\n", "invalid_json_line", None),
        (b"[]\n", "invalid_json_line", None),
        (b'{"custom_id": "x", "custom_id": "y"}\n', "invalid_json_line", None),
        (b"\xff\xfe\n", "invalid_json_line", None),
        (b"\x00" * 100 + b"\n", "invalid_json_line", None),
        (b'{"custom_id": "\\ud800"}\n', "invalid_json_line", None),
        (b"[" * 5000 + b"\n", "invalid_json_line", None),
        (b'{"a": "' + b"x" * 200_000 + b'"}\n', "line_too_long", None),
        (line("a"), "duplicate_custom_id", "custom_id"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("x" * 513), "invalid_custom_id", "custom_id"),
        (line("b") | {"custom_id": 5}, "invalid_type", "custom_id"),
        (line("b") | {"body": []}, "invalid_type", "body"),
        (line("b") | {"body": None}, "missing_required_parameter", "body"),
        ({"custom_id": "b", "url": COMPLETIONS, "body": {}}, "missing_required_parameter", "method"),
        (line("b") | {"method": "GET"}, "invalid_method", "method"),
        (line("b", CHAT), "mismatched_endpoint", "url"),
        (line("b") | {"priority": 1}, "unknown_parameter", "priority"),
        (line("b", stream=True), "invalid_request", "body.stream"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_line_fails_the_batch_before_any_is_run(keep, wrong, code, param):
    server = keep()
    batch = finished(server, start(server, jsonl(line("a"), b"\n", wrong, line("z"))))
    assert (batch["status"], counts(batch), batch["output_file_id"]) == ("failed", (0, 0, 0), None)
    (error,) = batch["errors"]["data"]
    assert (error["line"], error["code"], error["param"]) == (3, code, param)
    assert error["message"]
    assert batch["failed_at"] >= batch["created_at"]


def test_all_errors_are_listed_up_to_a_limit(keep, monkeypatch):
    monkeypatch.setattr("xlaserve.server.batches.lines.MAX_LINES", 300)
    server = keep()
    batch = finished(server, start(server, b"x\n" * 7))
    assert [error["line"] for error in batch["errors"]["data"]] == [1, 2, 3, 4, 5, 6, 7]
    assert len(finished(server, start(server, b"x\n" * 250))["errors"]["data"]) == 100
    for data, code in [(b"\n \r\n\n", "empty_file"), (jsonl(*(line(str(n)) for n in range(301))), "too_many_requests")]:
        (error,) = finished(server, start(server, data))["errors"]["data"]
        assert error["code"] == code


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file-" + "0" * 32}, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after"),
        ({"priority": 1}, "priority"),
    ],
    ids=str,
)
def test_a_wrong_batch_is_refused(keep, fields, param):
    server = keep()
    answer = post(server, uploaded(server, jsonl(line("a"))), **fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert server.get("/v1/batches").json["data"] == []


def test_results_are_no_input_and_an_input_stays_while_it_is_read(keep):
    server = keep(toy={"script": b"x" * 500, "step_seconds": 0.02})
    file_id = uploaded(server, jsonl(*(line(str(n), max_tokens=40) for n in range(20))))
    batch_id = post(server, file_id).json["id"]
    refused = server.request("DELETE", f"/v1/files/{file_id}")
    assert (refused.status, refused.error["code"]) == (400, "file_in_use")
    server.post(f"/v1/batches/{batch_id}/cancel", None)
    finished(server, batch_id)
    assert server.request("DELETE", f"/v1/files/{file_id}").status == 200
    output = finished(server, start(server, jsonl(line("a"))))["output_file_id"]
    answer = post(server, output)
    assert (answer.status, answer.error["param"]) == (400, "input_file_id")


def test_counts_only_grow(keep):
    server = keep(api_keys=TENANTS, toy={"script": b"x" * 500, "step_seconds": 0.001})
    data = jsonl(*(line(str(n), max_tokens=5) for n in range(30)))
    batches = [(start(server, data, name), name) for name in TENANTS]
    seen: dict[str, list[int]] = {name: [0] for name in TENANTS}
    while min(counts_seen[-1] for counts_seen in seen.values()) < 30:
        for batch_id, name in batches:
            seen[name].append(look(server, batch_id, name)["request_counts"]["completed"])
            assert seen[name][-1] >= seen[name][-2]
            assert len(seen[name]) < 10_000


def test_cancel(keep):
    server = keep(toy={"script": b"x" * 500, "step_seconds": 0.01}, batch_lines=2)
    data = jsonl(line("short", max_tokens=1), *(line(str(n), max_tokens=50) for n in range(200)))
    batch_id = start(server, data)
    assert wait_until(lambda: look(server, batch_id)["request_counts"]["completed"] >= 3, 10)
    answer = server.post(f"/v1/batches/{batch_id}/cancel", None).json
    assert answer["status"] in ("cancelling", "cancelled")
    batch = finished(server, batch_id)
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    assert 3 <= len(results(server, batch)) == batch["request_counts"]["completed"] < 200
    assert server.post(f"/v1/batches/{batch_id}/cancel", None).json == batch
    assert wait_until(lambda: server.service.stats()["running"] == 0)
    done = finished(server, start(server, jsonl(line("a"))))
    refused = server.post(f"/v1/batches/{done['id']}/cancel", None)
    assert (refused.status, refused.error["code"]) == (400, "invalid_batch_status")


def test_a_batch_that_waits_for_another_is_cancelled_at_once(keep):
    server = keep(toy={"script": b"x" * 500, "step_seconds": 0.01}, batch_lines=1)
    first = start(server, jsonl(*(line(str(n), max_tokens=50) for n in range(200))))
    second = start(server, jsonl(line("a")))
    server.post(f"/v1/batches/{second}/cancel", None)
    batch = finished(server, second)
    assert (batch["status"], batch["output_file_id"], batch["error_file_id"]) == ("cancelled", None, None)
    assert look(server, first)["status"] == "in_progress"


def test_expiry(keep):
    later = [0.0]
    toy = {"script": b"x" * 500, "step_seconds": 0.01}
    server = keep(toy=toy, batch_lines=2, now=lambda: time.time() + later[0])
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=30) for n in range(100))))
    assert wait_until(lambda: look(server, batch_id)["request_counts"]["completed"] >= 2, 10)
    later[0] = 24 * 3600 + 1
    batch = finished(server, batch_id)
    assert (batch["status"], batch["request_counts"]["total"]) == ("expired", 100)
    done, errors = results(server, batch), results(server, batch, "error")
    assert set(done) | set(errors) == {str(n) for n in range(100)}
    assert not set(done) & set(errors)
    assert {(one["response"], one["error"]["code"]) for one in errors.values()} == {(None, "batch_expired")}


def test_a_tenant_sees_and_uses_its_own_only(keep):
    server = keep(api_keys=TENANTS)
    data = jsonl(line("a"))
    mine, theirs = start(server, data, "alice"), start(server, data, "bob")
    for name, own, other in (("alice", mine, theirs), ("bob", theirs, mine)):
        batch = finished(server, own, name)
        assert set(results(server, batch, tenant=name)) == {"a"}
        listed = server.request("GET", "/v1/batches", headers=as_tenant(name)).json["data"]
        assert [batch["id"] for batch in listed] == [own]
        for method, path in (("GET", ""), ("POST", "/cancel")):
            assert server.request(method, f"/v1/batches/{other}{path}", headers=as_tenant(name)).status == 404
    answer = post(server, uploaded(server, data, tenant="alice"), "bob")
    assert (answer.status, answer.error["param"]) == (400, "input_file_id")
    bobs_output = finished(server, theirs, "bob")["output_file_id"]
    assert server.request("GET", f"/v1/files/{bobs_output}/content", headers=as_tenant("alice")).status == 404


def test_a_long_batch_of_one_tenant_does_not_hold_up_another(keep):
    server = keep(api_keys=TENANTS, toy={"script": b"x" * 500, "step_seconds": 0.002}, batch_lines=2)
    long = start(server, jsonl(*(line(str(n), max_tokens=20) for n in range(300))), "alice")
    assert wait_until(lambda: look(server, long, "alice")["request_counts"]["completed"] >= 1, 10)
    assert (
        finished(server, start(server, jsonl(*(line(str(n)) for n in range(3))), "bob"), "bob")["status"] == "completed"
    )
    assert look(server, long, "alice")["status"] == "in_progress"


def test_too_many_batches(keep, monkeypatch):
    monkeypatch.setattr(batch_store, "MAX_UNFINISHED", 2)
    server = keep(toy={"script": b"x" * 500, "step_seconds": 0.01}, batch_lines=1)
    file_id = uploaded(server, jsonl(*(line(str(n), max_tokens=50) for n in range(100))))
    assert [post(server, file_id).status for _ in range(3)] == [200, 200, 429]
    batches = server.get("/v1/batches?limit=1").json
    assert (len(batches["data"]), batches["has_more"]) == (1, True)


def test_junk_never_stops_the_batches(keep):
    server = keep()
    generator = random.Random(2)
    good = jsonl(*(line(f"r{n}", max_tokens=2) for n in range(5)))
    for turn in range(30):
        junk = bytearray(good)
        for _ in range(generator.choice([0, 1, 1, 2, 30])):
            at = generator.randrange(len(junk))
            junk[at : at + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
        if turn % 10 == 0:
            junk = bytearray(generator.randbytes(generator.randrange(1, 3000)))
        batch = finished(server, start(server, bytes(junk)))
        assert batch["status"] in ("completed", "failed")
        if batch["status"] == "failed":
            assert all(error["message"] and error["line"] for error in batch["errors"]["data"])
        else:
            done, errors = results(server, batch), results(server, batch, "error")
            assert counts(batch) == (len(done) + len(errors), len(done), len(errors))
            assert all(one["response"]["status_code"] < 500 for one in errors.values())
    assert server.complete().status == 200


def test_metrics(keep):
    server = keep()
    server.batches.measure(server.state.models())
    finished(server, start(server, jsonl(line("a"), line("b"), line("bad", n=0))))
    finished(server, start(server, b"x\n"))
    shown = server.get("/metrics").body.decode().splitlines()
    for name, value in [
        ('batches{model_name="toy",status="completed"}', 1),
        ('batches{model_name="toy",status="failed"}', 1),
        ('batches{model_name="toy",status="in_progress"}', 0),
        ('batch_lines_total{model_name="toy",result="completed"}', 2),
        ('batch_lines_total{model_name="toy",result="failed"}', 1),
    ]:
        assert f"xlaserve:{name} {value}.0" in shown


def test_without_a_folder_it_is_told_how_to_set_one(live):
    for method, path in [("GET", ""), ("POST", ""), ("GET", "/x"), ("POST", "/x/cancel")]:
        answer = live.request(method, f"/v1/batches{path}", {} if method == "POST" else None)
        assert (answer.status, answer.error["code"]) == (404, "files_not_configured")
