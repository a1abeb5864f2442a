"""The figures of a load as tables on stdout."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from xlaserve.bench.report import METRICS
from xlaserve.cli.bench_table import new_table

_EXPLAINED = {
    "ttft": "to the first text",
    "tpot": "per further token, of one answer",
    "itl": "between two pieces of text",
    "e2el": "to the end",
}


def print_report(report: dict[str, Any], percentiles: Sequence[float]) -> None:
    """`report`: from `make_report`."""
    console = Console(highlight=False, markup=False)
    columns = ["mean", "median", "std", *(f"p{percent:g}" for percent in percentiles)]
    latencies = new_table("ms", *columns, "")
    for metric in METRICS:
        values = [report[f"{column}_{metric}_ms"] for column in columns]
        shown = ["-" if value is None else f"{value:.1f}" for value in values]
        latencies.add_row(metric.upper(), *shown, _EXPLAINED[metric])
    console.print(latencies)
    console.print(_figures(report))
    for error in report["errors"]:
        console.print(f"error: {error}")


def _figures(report: dict[str, Any]) -> Any:
    table = new_table("figure", "value", "")
    table.add_row("requests done", str(report["completed"]), f"in {report['duration']:.1f} s")
    table.add_row("requests failed", str(report["failed"]), "")
    table.add_row("requests/s", f"{report['request_throughput']:.2f}", "")
    if "request_goodput" in report:
        limits = ", ".join(f"{metric} {limit:g} ms" for metric, limit in report["goodput_limits_ms"].items())
        table.add_row("goodput, requests/s", f"{report['request_goodput']:.2f}", f"within {limits}")
    table.add_row("output tokens/s", f"{report['output_throughput']:.1f}", f"{report['total_output_tokens']} tokens")
    table.add_row(
        "tokens/s", f"{report['total_token_throughput']:.1f}", f"prompts: {report['total_input_tokens']} tokens"
    )
    table.add_row("on their way", str(report["max_concurrent_requests"]), "at most")
    table.add_row("short answers", str(report["short_answers"]), "ended before the asked length")
    return table
