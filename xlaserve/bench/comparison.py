"""Two ways of serving under the same load, in turns: figures of both and their ratios."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

COMPARED = (
    "output_throughput", "request_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_itl_ms",
    "p99_itl_ms", "median_e2el_ms",
)  # fmt: skip


def compare(rounds: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """By figure: the medians of A and B, and B / A of each round: median, smallest, greatest.

    `rounds`: a report of A and one of B, measured right after each other. Figures that one lacks are left out.
    """
    found = {}
    for name in COMPARED:
        pairs = [(first.get(name), second.get(name)) for first, second in rounds]
        whole = [(a, b) for a, b in pairs if a and b is not None]
        if len(whole) == len(rounds):
            ratios = [b / a for a, b in whole]
            found[name] = {
                "a": median(a for a, _ in whole),
                "b": median(b for _, b in whole),
                "ratio": median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
    return found
