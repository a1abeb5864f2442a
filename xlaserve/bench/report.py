"""What came of a load, in the names and by the arithmetic of `vllm bench serve`.

TTFT: from sending a request to the first piece of text. TPOT: of one answer, the mean time per token after the first.
ITL: between two pieces of text, of all answers together. E2EL: from sending a request to the end of its answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any

from xlaserve.bench.client import Answer
from xlaserve.bench.figures import percentile

METRICS = ("ttft", "tpot", "itl", "e2el")
_NAMED_ERRORS = 3


def latencies(answers: Iterable[Answer]) -> dict[str, list[float]]:
    """Of the answers that have text: milliseconds by metric."""
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for answer in answers:
        for metric, value in _of_one(answer).items():
            found[metric].append(value)
        found["itl"] += [
            1e3 * (after - before) for before, after in zip(answer.pieces, answer.pieces[1:], strict=False)
        ]
    return found


def make_report(
    answers: Sequence[Answer], *, percentiles: Sequence[float], goodput: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """JSON. `goodput`: milliseconds by metric; requests that stay under all of them count."""
    good = [answer for answer in answers if answer.error is None]
    duration = max(answer.done for answer in answers) - min(answer.sent for answer in answers)
    prompts, outputs = sum(each.prompt_tokens for each in good), sum(each.output_tokens for each in good)
    report = {
        "duration": duration,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (prompts + outputs) / duration,
        "max_concurrent_requests": max((running for _, running in concurrency(answers)), default=0),
        "short_answers": sum(each.output_tokens < each.job.output_tokens for each in good),  # ended by themselves
        "errors": sorted({each.error for each in answers if each.error is not None})[:_NAMED_ERRORS],
    }
    if goodput is not None:
        kept = sum(all(_of_one(each).get(metric, 0.0) <= limit for metric, limit in goodput.items()) for each in good)
        report |= {"request_goodput": kept / duration, "goodput_limits_ms": dict(goodput)}
    for metric, values in latencies(good).items():
        report |= _summary(metric, values, percentiles)
    return report


def concurrency(answers: Iterable[Answer]) -> list[tuple[float, int]]:
    """(time, requests on their way from then on), by time."""
    changes = sorted(change for each in answers for change in ((each.sent, 1), (each.done, -1)))
    running, curve = 0, []
    for moment, change in changes:
        running += change
        curve.append((moment, running))
    return curve


def _of_one(answer: Answer) -> dict[str, float]:
    """Milliseconds, of the metrics that one answer has one value of; of an answer without text none."""
    if not answer.pieces:
        return {}
    found = {"ttft": answer.pieces[0] - answer.sent, "e2el": answer.done - answer.sent}
    if answer.output_tokens > 1:
        found["tpot"] = (answer.pieces[-1] - answer.pieces[0]) / (answer.output_tokens - 1)
    return {metric: 1e3 * seconds for metric, seconds in found.items()}


def _summary(metric: str, values: list[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    values = sorted(values)
    figures = {"mean": fmean, "median": median, "std": pstdev}
    return {f"{name}_{metric}_ms": figure(values) if values else None for name, figure in figures.items()} | {
        f"p{percent:g}_{metric}_ms": percentile(values, percent) if values else None for percent in percentiles
    }
