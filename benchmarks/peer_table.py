"""Figures of several rounds, ours and the peers', as medians with their spread and ratios; it starts no process."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

Figures = Mapping[str, float]  # of one contender in one round, by name
OURS = "xlaserve"


class Spread(NamedTuple):
    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(median(values), min(values), max(values))

    def text(self) -> str:
        return f"{_number(self.median)} ({_number(self.least)} to {_number(self.most)})"


def _number(value: float) -> str:
    """With three digits, or all before the point."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def summary(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, dict[str, dict[str, Spread]]]:
    """By figure and contender: `value`, and of a peer `ratio`, ours / its of each round where both have the figure.

    rounds: of each what every contender measured in it.
    """
    found: dict[str, dict[str, dict[str, Spread]]] = {}
    for figure in dict.fromkeys(name for each in rounds for figures in each.values() for name in figures):
        of_figure = found.setdefault(figure, {})
        for contender in dict.fromkeys(name for each in rounds for name in each):
            values = [each[contender][figure] for each in rounds if figure in each.get(contender, {})]
            pairs = [(each.get(OURS, {}).get(figure), each.get(contender, {}).get(figure)) for each in rounds]
            ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
            if values:
                of_figure[contender] = {"value": Spread.of(values)}
            if ratios and contender != OURS:
                of_figure[contender]["ratio"] = Spread.of(ratios)
    return found


def markdown(rounds: Sequence[Mapping[str, Figures]]) -> str:
    """A line for each figure. Of a peer: its median and spread, then ours / its, likewise."""
    contenders = list(dict.fromkeys([OURS, *(name for each in rounds for name in each)]))
    lines = [f"| | {' | '.join(contenders)} |", "|---" * (1 + len(contenders)) + "|"]
    for figure, of_figure in summary(rounds).items():
        lines.append(f"| {figure} | {' | '.join(_cell(of_figure.get(name, {})) for name in contenders)} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, Spread]) -> str:
    shown = found["value"].text() if "value" in found else ""
    return f"{shown}; **{found['ratio'].text()}**" if "ratio" in found else shown
