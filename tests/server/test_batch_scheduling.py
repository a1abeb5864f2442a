"""Batches stay behind online requests. Orders are counted, not times."""

import threading

import pytest

from tests.server.batching import counts, finished, jsonl, line, look, results, start
from tests.server.harness import wait_until
from xlaserve.sampling_params import SamplingParams
from xlaserve.scheduling_params import NO_PREFERENCE
from xlaserve.server.batches.runner import LOWEST_PRIORITY

LONG = {"script": b"x" * 500, "step_seconds": 0.005}


@pytest.fixture
def submissions(monkeypatch):
    """submissions(server): a list that gets (max_tokens, num_waiting, num_requests, scheduling) of each submission."""

    def watch(server):
        seen, submit = [], server.service.submit_all

        def spy(prompts, params: list[SamplingParams], ids, news=None, scheduling=NO_PREFERENCE):
            seen.append(
                (params[0].max_tokens, server.service.num_waiting, server.service._loop.num_requests, scheduling)
            )
            return submit(prompts, params, ids, news, scheduling)

        monkeypatch.setattr(server.service, "submit_all", spy)
        return seen

    return watch


def in_background(function, count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=function, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_no_line_is_submitted_while_an_online_request_waits(keep, submissions):
    server = keep(toy=LONG | {"max_num_seqs": 4})
    seen = submissions(server)
    online = in_background(lambda _: server.complete(max_tokens=60), 7)
    assert wait_until(lambda: server.service.stats()["waiting"] == 3)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=2) for n in range(10))))
    assert wait_until(lambda: look(server, batch_id)["status"] == "in_progress")
    assert look(server, batch_id)["request_counts"]["completed"] == 0
    for thread in online:
        thread.join(20)
    assert finished(server, batch_id)["status"] == "completed"
    assert [tokens for tokens, *_ in seen[:7]] == [60] * 7  # all of them before any line
    assert [waiting for _, waiting, *_ in seen[7:]] == [0] * 10


def test_two_hundred_lines_beside_online_requests(keep, submissions):
    server = keep(toy={"script": b"x" * 500, "step_seconds": 0.001}, batch_lines=3)
    alone = server.complete(max_tokens=30).json["choices"][0]
    seen = submissions(server)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=1 + n % 7) for n in range(200))))
    answers: list = []
    online = in_background(lambda _: answers.append(server.complete(max_tokens=30)), 5)
    for thread in online:
        thread.join(20)
    assert [answer.json["choices"][0] for answer in answers] == [alone] * 5
    batch = finished(server, batch_id)
    assert counts(batch) == (200, 200, 0)
    for name, result in results(server, batch).items():
        assert result["response"]["body"]["usage"]["completion_tokens"] == 1 + int(name) % 7
    lines = [one for one in seen if one[0] != 30]
    assert len(lines) == 200
    assert max(running for _, _, running, _ in lines) <= 2 + 5  # with itself three lines, beside five others


def test_half_of_the_rows_are_left_to_others(keep, submissions):
    server = keep(toy=LONG)
    seen = submissions(server)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=20) for n in range(30))))
    assert finished(server, batch_id)["status"] == "completed"
    assert max(running for _, _, running, _ in seen) == 8 // 2 - 1


def test_under_priority_an_online_request_takes_the_place_of_a_line(keep, submissions):
    server = keep(toy=LONG | {"max_num_seqs": 2, "policy": "priority"}, batch_lines=2)
    seen = submissions(server)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=80, priority=n) for n in range(4))))
    assert wait_until(lambda: server.service.stats()["running"] == 2)
    assert server.complete(max_tokens=2).status == 200
    assert look(server, batch_id)["request_counts"]["completed"] == 0
    assert counts(finished(server, batch_id)) == (4, 4, 0)
    priorities = [scheduling.priority for tokens, _, _, scheduling in seen if tokens == 80]
    assert priorities == [LOWEST_PRIORITY + n for n in range(4)]


def test_a_full_engine_is_waited_for(keep):
    server = keep(toy=LONG | {"max_num_seqs": 2, "max_waiting": 0}, batch_lines=5)
    batch_id = start(server, jsonl(*(line(str(n), max_tokens=10) for n in range(20)), line("n", n=3)))
    batch = finished(server, batch_id)
    assert counts(batch) == (21, 20, 1)  # three answers at once are more than this server ever takes
    assert results(server, batch, "error")["n"]["response"]["status_code"] == 400
