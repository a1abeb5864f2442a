"""Figures of made-up answers, reckoned by hand and by numpy."""

import json
import random

import numpy as np
import pytest

from xlaserve.bench.client import Answer
from xlaserve.bench.figures import percentile
from xlaserve.bench.report import concurrency, make_report
from xlaserve.bench.workload import Job

JOB = Job("a", 3)
ANSWERS = [
    Answer(JOB, 10.0, [10.5, 10.6, 10.8], 11.0, 7, 3),
    Answer(JOB, 10.25, [10.35, 10.75], 10.75, 5, 5),  # several tokens in a piece
    Answer(JOB, 10.5, [11.5], 12.0, 4, 1),
    Answer(JOB, 10.6, [], 10.7, error="503 busy"),
]


def test_by_hand():
    report = make_report(ANSWERS, percentiles=[50, 100], goodput={"ttft": 600.0, "tpot": 120.0})
    assert report["duration"] == 2.0
    assert (report["completed"], report["failed"], report["errors"]) == (3, 1, ["503 busy"])
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (16, 9)
    assert (report["request_throughput"], report["output_throughput"], report["total_token_throughput"]) == (
        1.5,
        4.5,
        12.5,
    )
    assert report["short_answers"] == 1
    assert report["max_concurrent_requests"] == 4
    assert report["request_goodput"] == 0.5  # the first has a TPOT of 150 ms, the third a TTFT of a second
    assert report["median_ttft_ms"] == report["p50_ttft_ms"] == pytest.approx(500)
    assert report["mean_tpot_ms"] == pytest.approx((150 + 100) / 2)  # of one token there is none
    assert report["mean_itl_ms"] == pytest.approx((100 + 200 + 400) / 3)
    assert report["p100_e2el_ms"] == pytest.approx(1500)


def test_all_have_failed():
    report = make_report(ANSWERS[3:], percentiles=[99])
    assert (report["completed"], report["output_throughput"], report["p99_ttft_ms"]) == (0, 0, None)
    assert "request_goodput" not in report
    json.dumps(report, allow_nan=False)


def test_percentiles_are_those_of_numpy():
    rng = random.Random(0)
    for count in (1, 2, 3, 100):
        values = sorted(rng.random() for _ in range(count))
        for percent in (0, 1, 33.3, 50, 99, 100):
            assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_who_is_on_the_way_when():
    assert concurrency(ANSWERS[:2]) == [(10.0, 1), (10.25, 2), (10.75, 1), (11.0, 0)]
