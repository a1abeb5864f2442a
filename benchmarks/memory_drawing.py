"""Draws recorded moments with matplotlib: colours that the colour-blind tell apart, and letters for who sees none."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Patch, Rectangle
from PIL import Image

from benchmarks.memory_recorder import Holders, Moment

# Okabe and Ito's, by request; their order is that of appearance.
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#b3a000", "#0072b2", "#d55e00", "#b0a0e0")
SHARED, CACHED, FREE, INK = "#333333", "#cfcfcf", "#ffffff", "#111111"
DARK = {SHARED, "#0072b2", "#009e73"}  # what is written there is white
MARKS = {  # what happens to a block: (marker, colour)
    "copied: rest of a prefix": ("s", "#ffffff"),
    "copied on write": ("D", "#ffe000"),
    "least recently used: reused": ("v", "#ff3b30"),
}

State = tuple[Holders, bool]


def label(request_id: str) -> str:
    """Forks are named D-1, D-2: the second and third answer."""
    return request_id.replace("-", "")


def colours(moments: Sequence[Moment]) -> dict[str, str]:
    names = dict.fromkeys(name for moment in moments for name in moment.tables)
    return dict(zip(names, COLOURS, strict=False))


def _fill(state: State, by_name: dict[str, str]) -> tuple[str, str]:
    """(colour, text)"""
    holders, known = state
    if len(holders) > 1:
        return SHARED, f"×{len(holders)}"
    if holders:
        return by_name[holders[0]], label(holders[0])
    return (CACHED if known else FREE), ""


def _ink(colour: str) -> str:
    return FREE if colour in DARK else INK


def _runs(moments: Sequence[Moment], group: int, block: int) -> Iterator[tuple[int, int, State]]:
    """(first step, number of steps, state) of a block; whether its contents are known matters only while it is free."""
    states = []
    for moment in moments:
        holders = moment.holders[group][block]
        states.append((holders, not holders and moment.known[group][block]))
    changes = [0, *(i for i in range(1, len(states)) if states[i] != states[i - 1]), len(states)]
    for first, last in pairwise(changes):
        yield first, last - first, states[first]


def draw_map(axes: Axes, moments: Sequence[Moment], title: str, group: int = 0) -> None:
    by_name = colours(moments)
    num_blocks = len(moments[0].holders[group])
    for block in range(1, num_blocks):
        for first, length, state in _runs(moments, group, block):
            colour, text = _fill(state, by_name)
            axes.add_patch(Rectangle((first, block - 0.45), length, 0.9, facecolor=colour, linewidth=0))
            if text and length > 4:
                axes.text(first + 1.3, block, text, color=_ink(colour), fontsize=7, va="center")
    axes.set(xlim=(0, len(moments)), ylim=(num_blocks - 0.4, 0.4), xlabel="step", ylabel="block")
    axes.set_title(title, loc="left", fontsize=11, pad=8)


def add_key(axes: Axes, moments: Sequence[Moment]) -> None:
    """What the colours of a map mean, and its marks; below the figure."""
    by_name = colours(moments)
    patches = [Patch(facecolor=colour, label=label(name)) for name, colour in by_name.items()]
    if any(len(holders) > 1 for moment in moments for holders in moment.holders[0]):
        patches.append(Patch(facecolor=SHARED, label="shared by ×n"))
    patches.append(Patch(facecolor=CACHED, label="free, contents known"))
    patches.append(Patch(facecolor=FREE, edgecolor=INK, linewidth=0.5, label="free"))
    marks, _ = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    assert figure
    figure.legend(
        handles=patches + marks,
        loc="outside lower center",
        ncols=7,
        fontsize=8,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.2,
    )


def _events(moments: Sequence[Moment]) -> Iterator[tuple[int, int, str]]:
    """(step, block, which of MARKS), of the first group."""
    rest, written, reused = MARKS
    for step, (before, moment) in enumerate(pairwise(moments), start=1):
        copied = [block for group, source, block in moment.copies if group == 0 and source != block]
        for block in copied:
            begins = moment.found.keys() & set(moment.holders[0][block])
            yield step, block, rest if begins else written
        for block, holders in enumerate(moment.holders[0]):
            was_cached = before.known[0][block] and not before.holders[0][block]
            if was_cached and holders and not moment.known[0][block]:
                yield step, block, reused


def mark_events(axes: Axes, moments: Sequence[Moment]) -> None:
    """What happens to blocks, and above them what happens to requests."""
    events = list(_events(moments))
    for name, (marker, colour) in MARKS.items():
        places = [(step + 0.4, block) for step, block, which in events if which == name]
        if places:
            x, y = zip(*places, strict=True)
            axes.scatter(x, y, s=26, marker=marker, color=colour, edgecolors=INK, linewidths=0.8, label=name, zorder=3)
    for step, moment in enumerate(moments):
        for name, (found, asked) in moment.found.items():
            _flag(axes, step, f"{label(name)} begins:\n{found} of {asked} found")
        for name in moment.preempted:
            _flag(axes, step, f"{label(name)} loses\nits blocks")
    axes.set_title(axes.get_title(loc="left"), loc="left", fontsize=11, pad=28)  # above the flags


def _flag(axes: Axes, step: int, text: str) -> None:
    axes.axvline(step, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        text, (step, 1.0), (2, 3), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=7.5
    )


def draw_tables(axes: Axes, moment: Moment, by_name: dict[str, str]) -> None:
    """Each request's block table at the left, the pool at the right, and which entry names which block."""
    holders, known = moment.holders[0], moment.known[0]
    num_blocks = len(holders)
    width = max(len(tables[0]) for tables in moment.tables.values())
    pool_x = width + 5
    for block in range(1, num_blocks):
        colour, text = _fill((holders[block], known[block]), by_name)
        _box(axes, pool_x, block, colour, f"{block}")
        axes.text(pool_x + 1.2, block, text, va="center", fontsize=8)
    for place, (name, tables) in enumerate(moment.tables.items()):
        y = 2 + place * (num_blocks - 3) / max(1, len(moment.tables) - 1)
        axes.text(-0.3, y, label(name), ha="right", va="center", fontsize=11, weight="bold")
        for column, block in enumerate(tables[0]):
            colour, _ = _fill((holders[block], known[block]), by_name)
            _box(axes, column, y, colour, f"{block}")
            line = ConnectionPatch(
                (len(tables[0]), y), (pool_x, block), "data", "data", color=by_name[name], linewidth=1.4, alpha=0.9
            )
            axes.add_patch(line)
    axes.set(xlim=(-1.2, pool_x + 3), ylim=(num_blocks, -0.6))
    axes.text(0, 0.2, "block tables: entry i names the block of tokens 16i to 16i+15", fontsize=9)
    axes.text(pool_x, 0.2, "the pool", fontsize=9)
    axes.set_axis_off()


def _box(axes: Axes, x: float, y: float, colour: str, text: str) -> None:
    axes.add_patch(Rectangle((x, y - 0.42), 1, 0.84, facecolor=colour, edgecolor=INK, linewidth=0.6, zorder=2))
    axes.text(x + 0.5, y, text, ha="center", va="center", fontsize=8, color=_ink(colour), zorder=3)


def draw_usage(axes: Axes, moments: Sequence[Moment], names: Sequence[str], title: str) -> None:
    """Blocks in use per group, over the steps."""
    for group, (name, colour) in enumerate(zip(names, ("#0072b2", "#d55e00"), strict=True)):
        used = [sum(map(bool, moment.holders[group])) for moment in moments]
        axes.step(range(len(used)), used, where="post", color=colour, linewidth=2)
        axes.annotate(
            name, (len(used) * 0.7, used[len(used) * 7 // 10]), (0, 9), textcoords="offset points", ha="right"
        )
    axes.set(xlim=(0, len(moments)), ylim=(0, None), xlabel="step", ylabel="blocks in use")
    axes.set_title(title, loc="left", fontsize=11)


def save(figure: Figure, file: Path) -> None:
    """On white, whatever the page's colour is; in 128 colours, which makes small files."""
    rendered = BytesIO()
    figure.savefig(rendered, format="png", dpi=100, facecolor=FREE)
    Image.open(rendered).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
