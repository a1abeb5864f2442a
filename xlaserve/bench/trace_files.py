"""A trace as files: events for Perfetto (ui.perfetto.dev) or chrome://tracing, and a picture of some steps."""

import json
from collections.abc import Sequence
from pathlib import Path

from xlaserve.engine.tracing import BODY, DEVICE, STEP, Span

_SHOWN_STEPS = 6  # of a picture: more are too small to be seen
_SHOWN_TRACKS = 12


def save_events(spans: Sequence[Span], path: Path) -> None:
    """Times in microseconds from the first span's begin. Raises OSError."""
    zero = min((span.start for span in spans), default=0.0)
    tracks = {track: number for number, track in enumerate(_tracks(spans), start=1)}
    events: list[dict] = [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}}
        for track, number in tracks.items()
    ]
    events.insert(0, {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "xlaserve"}})
    events += [
        {
            "ph": "X", "pid": 1, "tid": tracks[span.track], "name": span.name,
            "ts": round(1e6 * (span.start - zero), 1), "dur": round(1e6 * span.seconds, 1),
        }
        for span in spans
    ]  # fmt: skip
    path.write_text(json.dumps(events), encoding="utf-8")


def _tracks(spans: Sequence[Span]) -> list[str]:
    """The device, then the engine's thread, then the others as they come."""
    return sorted(dict.fromkeys(span.track for span in spans), key=lambda track: (track != DEVICE, track != "engine"))


def save_picture(spans: Sequence[Span], title: str, path: Path) -> None:
    """Some steps from the middle, as a PNG; there must be two. Needs matplotlib (extra `bench`). Raises OSError."""
    from matplotlib.figure import Figure

    begins = [span.start for span in spans if span.track == DEVICE and span.name.startswith(BODY)]
    first = max(0, (len(begins) - _SHOWN_STEPS) // 2)
    start, end = begins[first], begins[min(first + _SHOWN_STEPS, len(begins) - 1)]
    shown = [span for span in spans if span.name != STEP and span.end > start and span.start < end]
    rows = {track: row for row, track in enumerate(_tracks(shown)[:_SHOWN_TRACKS])}
    figure = Figure(figsize=(13, 2 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(span.name for span in shown if span.track in rows)):
        bars = [span for span in shown if span.name == name and span.track in rows]
        left, widths = [1000 * (span.start - start) for span in bars], [1000 * span.seconds for span in bars]
        axes.barh([rows[span.track] for span in bars], widths, 0.8, left, color=f"C{number % 10}", label=name)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set(xlim=(0, 1000 * (end - start)), xlabel="ms", title=title)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, format="png", dpi=110)
