"""Arithmetic that the reports share."""

from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values in proportion, as numpy has it; `values` sorted, not empty."""
    place = (len(values) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
