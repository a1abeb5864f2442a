"""The figures of a simulated run as tables on stdout."""

from typing import Any

from rich.console import Console
from rich.table import Table

_COLUMNS = ("mean", "p50", "p90", "p99", "max")


def print_report(report: dict[str, Any]) -> None:
    """`report`: from `make_report`."""
    console = Console(highlight=False, markup=False)
    console.print(_latencies(report["latency_s"]))
    console.print(_figures(report))
    if len(report["tenants"]) > 1:
        console.print(_tenants(report["tenants"]))


def _latencies(latencies: dict[str, dict[str, float] | None]) -> Table:
    table = new_table("ms", *_COLUMNS)
    for name, found in latencies.items():
        table.add_row(name, *(f"{1000 * found[column]:.1f}" if found else "-" for column in _COLUMNS))
    return table


def _figures(report: dict[str, Any]) -> Table:
    throughput, memory = report["throughput"], report["memory"]
    concurrency, steps, requests = report["concurrency"], report["steps"], report["requests"]
    ended = ", ".join(f"{count} by {reason}" for reason, count in requests["finished"].items())
    beside = f"while others wait; max {concurrency['max']}, mean of all the time {_number(concurrency['mean'])}"
    contiguous = f"as in one piece of the greatest length, where {concurrency['contiguous']} would fit"
    table = new_table("figure", "value", "")
    table.add_row("requests finished", str(sum(requests["finished"].values())), ended)
    table.add_row("requests refused", str(requests["refused"]), "too long for the context or the pool")
    table.add_row("requests/s", _number(throughput["requests_per_s"]), f"in {report['seconds']:.1f} s")
    table.add_row("output tokens/s", _number(throughput["output_tokens_per_s"]), "")
    table.add_row("tokens/s", _number(throughput["total_tokens_per_s"]), "prompts included")
    table.add_row("running", _number(concurrency["while_queued"]), beside)
    table.add_row("times as many", _number(concurrency["times_contiguous"]), contiguous)
    table.add_row("blocks in use", _percent(memory["usage"]), "")
    table.add_row("internal waste", _percent(memory["internal_waste"]), "allocated slots without a token, over time")
    table.add_row("prefix hits", _percent(memory["prefix_hit_rate"]), "of the prompts' tokens")
    table.add_row("preemptions", str(memory["preemptions"]), "")
    table.add_row("padding waste", _percent(steps["padding_waste"]), f"of the tokens of {steps['count']} steps")
    return table


def _tenants(tenants: dict[str, dict[str, Any]]) -> Table:
    table = new_table("tenant", "requests", "served tokens", "share while all wait", "first token, ms: p50", "p99")
    for name, found in tenants.items():
        share, first_token = _percent(found["share_while_contended"]), found["time_to_first_token_s"]
        shown = [f"{1000 * first_token[column]:.1f}" if first_token else "-" for column in ("p50", "p99")]
        table.add_row(name, str(found["requests"]), str(found["served_tokens"]), share, *shown)
    return table


def new_table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name else "left")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}%"
