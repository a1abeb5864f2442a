"""A simulated run as a picture. Needs matplotlib, from the extra `bench`."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xlaserve.engine.simulation.measures import Measures
from xlaserve.engine.simulation.summaries import Histogram


def save_plot(measures: Measures, title: str, path: Path) -> None:
    """Memory, queues and latencies, as a PNG. Raises OSError."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _memory(axes[0, 0], measures)
    _queues(axes[0, 1], measures)
    _distribution(axes[1, 0], {"to first token": measures.first_token, "in the queue": measures.queue_time})
    _distribution(axes[1, 1], {"between two tokens": measures.inter_token})
    figure.savefig(path, format="png", dpi=110)


def _memory(axes: Axes, measures: Measures) -> None:
    times, usage, filled, _, _ = zip(*measures.curve.points, strict=True)
    used, full = [100 * share for share in usage], [100 * share for share in filled]
    axes.fill_between(times, full, step="post", color="tab:blue", alpha=0.6, label="hold tokens")
    axes.fill_between(times, full, used, step="post", color="tab:red", alpha=0.8, label="allocated, empty")
    axes.set(title="KV memory", xlabel="seconds", ylabel="% of the pool", ylim=(0, 100))
    axes.legend(loc="upper right")


def _queues(axes: Axes, measures: Measures) -> None:
    times, _, _, running, waiting = zip(*measures.curve.points, strict=True)
    axes.step(times, running, where="post", label="running")
    axes.step(times, waiting, where="post", label="waiting")
    axes.set(title="Requests", xlabel="seconds", ylim=(0, None))
    axes.legend()


def _distribution(axes: Axes, histograms: dict[str, Histogram]) -> None:
    for label, histogram in histograms.items():
        points = list(histogram.distribution())
        axes.step(
            [1000 * value for value, _ in points], [100 * share for _, share in points], where="post", label=label
        )
    axes.set(title=f"Time {' and '.join(histograms)}", xlabel="ms", ylabel="% at most", ylim=(0, 101))
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")
