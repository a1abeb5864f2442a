"""What a trace tells: how long the device is idle between two steps, and what the host does in each."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from xlaserve.bench.figures import percentile
from xlaserve.engine.tracing import BODY, DEVICE, STEP, WAIT, Span

HOST_WORK = "step() but for waiting"


@dataclass(frozen=True)
class Figures:
    """Of each step, in seconds, sorted; without the first step, and gaps without the last one's."""

    steps: Sequence[float]  # from its begin on the device to the next one's
    gaps: Sequence[float]  # from its end there to the next one's begin
    host: dict[str, Sequence[float]]  # by phase
    beside: dict[str, float]  # seconds per step on threads that hold up no step, by what they do

    @property
    def gap_share(self) -> float:
        """Of all the time."""
        return sum(self.gaps) / sum(self.steps)


def figures(spans: Iterable[Span]) -> Figures | None:
    """None where there are fewer than two steps."""
    tracks: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span.track].append(span)
    begins, ends = _steps(tracks.pop(DEVICE, []))
    engine = next((track for track, of_it in tracks.items() if any(span.name == STEP for span in of_it)), None)
    if len(begins) < 2 or engine is None:
        return None
    beside: defaultdict[str, float] = defaultdict(float)
    for track, of_it in tracks.items():
        for span in of_it if track != engine else ():
            beside[span.name] += span.seconds / len(begins)
    return Figures(
        steps=sorted(after - before for before, after in pairwise(begins)),
        gaps=sorted(begin - end for begin, end in zip(begins[1:], ends[:-1], strict=True)),
        host=_host_work(tracks[engine]),
        beside=dict(beside),
    )


def _steps(runs: Sequence[Span]) -> tuple[list[float], list[float]]:
    """When each began and ended on the device: a step is a body and what follows until the next one."""
    begins: list[float] = []
    ends: list[float] = []
    for run in runs:
        if run.name.startswith(BODY):
            begins.append(run.start)
            ends.append(run.end)
        elif ends:
            ends[-1] = run.end
    return begins, ends


def _host_work(spans: Sequence[Span]) -> dict[str, Sequence[float]]:
    """By phase, one value per step. A phase within a step comes before its step, for that ends later."""
    host: defaultdict[str, list[float]] = defaultdict(list)
    within: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        if span.name == STEP:
            host[HOST_WORK].append(span.seconds - within.get(WAIT, 0.0))
            for name, seconds in within.items():
                host[name].append(seconds)
            within.clear()
        else:
            within[span.name] += span.seconds
    return {name: sorted(values) for name, values in host.items()}


def summary(found: Figures) -> list[tuple[str, float, float, float]]:
    """(name, median, 95th percentile, mean) in seconds."""
    rows = [("step on the device", found.steps), ("gap between steps", found.gaps)]
    rows += [(name, values) for name, values in found.host.items()]
    return [(name, percentile(values, 50), percentile(values, 95), fmean(values)) for name, values in rows]
