"""The phases of starts as a waterfall. Needs matplotlib, from the extra `bench`."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def save_waterfall(found: dict[str, dict[str, Any]], title: str, path: Path) -> None:
    """`found`: by kind, from `medians`. Each kind has a scale of its own. Raises OSError."""
    heights = [len(each["phases"]) for each in found.values()]
    figure = Figure(figsize=(10, 1 + 0.32 * sum(heights)), layout="constrained")
    figure.suptitle(title)
    for axes, (kind, each) in zip(figure.subplots(len(found), 1, height_ratios=heights), found.items(), strict=True):
        _draw(axes, kind, each)
    figure.savefig(path, format="png", dpi=110)


def _draw(axes: Axes, kind: str, found: dict[str, Any]) -> None:
    longest = max([found["total"], *(end for _, end in found["phases"].values())])
    for row, (start, end) in enumerate(found["phases"].values()):
        axes.barh(row, end - start, left=start, height=0.7, color=f"C{row}")
        axes.text(end + 0.006 * longest, row, f"{end - start:.1f}", va="center", fontsize=8)
    axes.axvline(found["total"], color="black", linewidth=0.8, linestyle="dashed")
    axes.set_yticks(range(len(found["phases"])), list(found["phases"]), fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.06 * longest), title=f"{kind}: first token after {found['total']:.1f} s")
    axes.set_xlabel("seconds", loc="right")
