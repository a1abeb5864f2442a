"""The measure of resident memory: what is sent, how growth is found, and when it is too much."""

import json
import os

import pytest

from benchmarks.resident_memory import EVERY, KINDS, ShortRequests, gauge_mib, left_kib, measure, verdict
from tests.server.conftest import make_live, workers  # noqa: F401


def test_requests_are_short_and_of_all_kinds_and_repeat_themselves():
    sent, again = (
        [generator.next() for _ in range(300)] for generator in (ShortRequests(1, "m"), ShortRequests(1, "m"))
    )
    assert sent == again
    assert {one.kind for one in sent} == set(KINDS)
    bodies = [json.loads(one.body) for one in sent]
    assert {body["max_tokens"] for body in bodies} == set(range(1, 7))
    assert {len(body["prompt"].split()) for body in bodies} == set(range(8, 25))
    assert len({body["prompt"] for body in bodies}) == 300
    assert all((one.leaves is not None) == (one.kind == "left") for one in sent)


def test_growth_is_that_of_the_last_three_quarters():
    settled = [100.0, 150.0, 200.0, 200.0, 200.5, 201.0, 201.5, 202.0, 202.5, 203.0, 203.5, 204.0]  # MiB
    assert left_kib(settled) == pytest.approx(0.5 * 1024 / EVERY)


def test_what_is_too_much():
    flat = [1700.0] * 8
    text, faults = verdict(flat, 129.0, 1024.0)
    assert faults == []
    assert text == "resident 1700 MiB: weights 129, KV pool 1024, rest 547; a request leaves +0.00 KiB"
    assert verdict(flat, 129.0, 990.0)[1] == ["the rest is more than 572 MiB"]
    grows = [1690.0 + 0.25 * n for n in range(8)]
    assert verdict(grows, 129.0, 1024.0)[1] == ["a request leaves more than 1 KiB"]


def test_gauges():
    text = b'# HELP x\nxlaserve:weight_bytes{model_name="m"} 2.097152e+06\nxlaserve:kv_pool_bytes{model_name="m"} 1\n'
    assert gauge_mib(text, "weight_bytes") == 2.0


def test_a_sound_server_answers_all(make_live):  # noqa: F811
    live = make_live(max_requests=32, max_model_len=2000, num_blocks=(1000,))
    faults: list[str] = []
    resident = list(measure(live.url, os.getpid(), EVERY, faults))
    assert faults == []
    assert len(resident) == 1
    assert resident[0] > 10


def test_wrong_answers_are_faults(make_live, monkeypatch):  # noqa: F811
    monkeypatch.setitem(KINDS, "whole", {"logprobs": -1})
    faults: list[str] = []
    list(measure(make_live().url, os.getpid(), EVERY, faults))
    assert [fault for fault in faults if fault.startswith("whole: ") and fault.endswith(" answers of status 400")]
