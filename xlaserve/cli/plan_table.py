"""Plans as tables on stdout."""

from typing import Any

from rich.console import Console
from rich.filesize import decimal

from xlaserve.cli.bench_table import new_table
from xlaserve.engine.planning.advice import advice
from xlaserve.engine.planning.plan import Plan
from xlaserve.engine.planning.report import Figure, figures

ESTIMATED = "~"


def print_plan(plan: Plan) -> None:
    """Every figure with what it is; then what limits, and what to change."""
    console = Console(highlight=False, markup=False)
    table = new_table("", plan.target.name, "")
    for figure in figures(plan):
        note = ", ".join(filter(None, (figure.note, "estimated" if _is_marked(figure) else "")))
        table.add_row(figure.label, shown(figure), note)
    console.print(table)
    for sentence in advice(plan):
        console.print(f"- {sentence}")
    console.print(_about(plan.compiled))


def print_comparison(plans: list[Plan]) -> None:
    """A column for each target."""
    console = Console(highlight=False, markup=False)
    table = new_table("", *(plan.target.name for plan in plans))
    for row in zip(*map(figures, plans), strict=True):
        table.add_row(row[0].label, *map(shown, row))
    console.print(table)
    for plan in plans:
        if plan.problem:
            console.print(f"- {plan.target.name}: {plan.problem}")
    console.print(_about(all(plan.compiled for plan in plans)))


def shown(figure: Figure) -> str:
    """With its unit, and a mark if it is estimated."""
    mark = ESTIMATED if _is_marked(figure) else ""
    return mark + _value(figure.value, figure.unit)


def _is_marked(figure: Figure) -> bool:
    return figure.estimated and figure.value is not None


def _value(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " + ".join(f"{part:,}" for part in value)
    if unit == "bytes":
        return decimal(int(value))
    if unit == "s":
        return f"{value:,.0f} s" if value < 100 else f"{value / 60:,.0f} min"
    return f"{value:,.2f} ms" if unit == "ms" else f"{value:,.0f}"


def _about(compiled: bool) -> str:
    memory = "the compiler's account" if compiled else f"{ESTIMATED} marks what is estimated; no compiler was asked"
    return f"Memory: {memory}. Times are floors, by the vendor's bandwidth and arithmetic: nothing was executed."
