"""A load as a picture. Needs matplotlib, from the extra `bench`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xlaserve.bench.client import Answer
from xlaserve.bench.report import concurrency, latencies


def save_plot(answers: Sequence[Answer], title: str, path: Path) -> None:
    """Latencies as distributions, requests and pieces of text over time, as a PNG. Raises OSError."""
    start = min(answer.sent for answer in answers)
    good = [answer for answer in answers if answer.error is None]
    found = latencies(good)
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _distribution(axes[0, 0], {"TTFT": found["ttft"], "E2EL": found["e2el"]})
    _distribution(axes[0, 1], {"TPOT": found["tpot"], "ITL": found["itl"]})
    _over_time(axes[1, 0], answers, start)
    _requests(axes[1, 1], good, start)
    figure.savefig(path, format="png", dpi=110)


def _distribution(axes: Axes, metrics: dict[str, list[float]]) -> None:
    for name, values in metrics.items():
        shares = [100 * (place + 1) / len(values) for place in range(len(values))]
        axes.step(sorted(values), shares, where="post", label=name)
    axes.set(title=" and ".join(metrics), xlabel="ms", ylabel="% at most", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.legend()


def _over_time(axes: Axes, answers: Sequence[Answer], start: float) -> None:
    curve = concurrency(answers)
    axes.step(
        [moment - start for moment, _ in curve], [running for _, running in curve], where="post", color="tab:gray"
    )
    axes.set(title="On their way, and pieces of text a second", xlabel="seconds", ylabel="requests", ylim=(0, None))
    pieces = Counter(int(moment - start) for answer in answers for moment in answer.pieces)
    seconds = range(max(pieces, default=0) + 1)
    beside = axes.twinx()
    beside.step(seconds, [pieces[second] for second in seconds], where="post", color="tab:blue")
    beside.set(ylabel="pieces/s", ylim=(0, None))


def _requests(axes: Axes, good: Sequence[Answer], start: float) -> None:
    lines = range(len(good))
    sent, done = [each.sent - start for each in good], [each.done - start for each in good]
    first = [(each.pieces[0] if each.pieces else each.done) - start for each in good]
    axes.hlines(lines, sent, first, color="tab:orange", label="to the first text")
    axes.hlines(lines, first, done, color="tab:blue", label="to the end")
    axes.set(title="Each request", xlabel="seconds", yticks=[])
    axes.legend(loc="lower right")
