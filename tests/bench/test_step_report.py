"""Figures and files of made-up spans, reckoned by hand."""

import json

import pytest
from matplotlib.image import imread

from xlaserve.bench.step_report import HOST_WORK, figures, summary
from xlaserve.bench.trace_files import save_events, save_picture
from xlaserve.engine.tracing import DEVICE, STEP, WAIT, Span


def engine(name: str, start: float, end: float) -> Span:
    return Span("engine", name, start, end)


SPANS = [
    Span(DEVICE, "body 16", 1.0, 4.0),
    engine("schedule", 0.0, 0.25),
    engine("launch body", 0.25, 1.0),
    engine(STEP, 0.0, 1.5),
    Span(DEVICE, "sample", 4.5, 5.0),  # its wait for the body's is no gap between steps
    Span(DEVICE, "body 16", 5.0, 8.0),
    engine("deliver", 1.5, 1.75),
    engine("schedule", 2.0, 2.5),
    engine(WAIT, 3.0, 5.0),
    engine(STEP, 2.0, 5.5),
    Span(DEVICE, "sample", 8.0, 9.0),
    Span("http-1", "make text", 6.0, 6.75),
    Span("http-2", "make text", 6.0, 6.75),
    Span(DEVICE, "body 64", 10.5, 11.0),
    engine(STEP, 6.0, 12.0),
]


def test_by_hand():
    found = figures(SPANS)
    assert found is not None
    assert (found.steps, found.gaps) == ([4.0, 5.5], [0.0, 1.5])
    assert found.gap_share == pytest.approx(1.5 / 9.5)
    assert found.host == {
        HOST_WORK: [1.5, 1.5, 6.0],
        "schedule": [0.25, 0.5],
        "launch body": [0.75],
        "deliver": [0.25],
        WAIT: [2.0],
    }
    assert found.beside == {"make text": pytest.approx(1.5 / 3)}
    rows = {name: values for name, *values in summary(found)}
    assert rows["gap between steps"] == pytest.approx([0.75, 1.425, 0.75])
    assert rows[HOST_WORK] == pytest.approx([1.5, 5.55, 3.0])


def test_one_step_tells_of_no_gap():
    assert figures(SPANS[:4]) is None
    assert figures([]) is None


def test_files(tmp_path):
    save_events(SPANS, tmp_path / "trace.json")
    named, events = [], []
    for event in json.loads((tmp_path / "trace.json").read_text()):
        (events if event["ph"] == "X" else named).append(event)
    names = {event["tid"]: event["args"]["name"] for event in named if event["name"] == "thread_name"}
    assert list(names.values()) == [DEVICE, "engine", "http-1", "http-2"]
    assert len(events) == len(SPANS)
    for event, span in zip(events, SPANS, strict=True):
        assert (names[event["tid"]], event["name"], event["pid"]) == (span.track, span.name, 1)
        assert (event["ts"], event["dur"]) == (1e6 * span.start, 1e6 * span.seconds)
    save_picture(SPANS, "made up", tmp_path / "trace.png")
    assert imread(tmp_path / "trace.png").std() > 0
