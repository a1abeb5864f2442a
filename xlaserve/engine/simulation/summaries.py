"""Percentiles, averages and curves of streams of any length, in bounded memory."""

from collections.abc import Iterator
from math import inf, log

_BUCKETS_PER_E = 100  # a bucket is 1% wide
_MAX_POINTS = 2000


class Histogram:
    """Values >= 0 in buckets 1% wide, each of which stands for the mean of what is in it."""

    def __init__(self):
        self.count = 0
        self.maximum = 0.0
        self._buckets: dict[float, tuple[int, float]] = {}  # how many values, and their sum

    def add(self, value: float, count: int = 1) -> None:
        key = round(log(value) * _BUCKETS_PER_E) if value > 0 else -inf
        number, total = self._buckets.get(key, (0, 0.0))
        self._buckets[key] = (number + count, total + value * count)
        self.count += count
        self.maximum = max(self.maximum, value)

    def mean(self) -> float:
        return sum(total for _, total in self._buckets.values()) / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The smallest value that at least `percent` % of the values do not exceed; 0 when there are none."""
        return next((value for value, share in self.distribution() if share >= percent / 100), 0.0)

    def distribution(self) -> Iterator[tuple[float, float]]:
        """(value, the share of values up to it), ascending."""
        seen = 0
        for key in sorted(self._buckets):
            number, total = self._buckets[key]
            seen += number
            yield total / number, seen / self.count


class TimeAverage:
    """Of a quantity that keeps each value for some seconds."""

    def __init__(self):
        self._integral = 0.0
        self._seconds = 0.0

    def add(self, value: float, seconds: float) -> None:
        self._integral += value * seconds
        self._seconds += seconds

    def value(self) -> float | None:
        """None: it never had any."""
        return self._integral / self._seconds if self._seconds else None


class Curve:
    """Points (time, values...) of a run of any length: when there are too many, every other one is dropped."""

    def __init__(self):
        self.points: list[tuple[float, ...]] = []
        self._every = 1
        self._offered = 0

    def offer(self, *point: float) -> None:
        if self._offered % self._every == 0:
            self.points.append(point)
        self._offered += 1
        if len(self.points) == _MAX_POINTS:
            del self.points[1::2]
            self._every *= 2
