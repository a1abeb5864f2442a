"""The figures of a simulated run as plain data, ready for JSON. Times are virtual."""

from dataclasses import asdict
from typing import Any

from xlaserve.engine.simulation.simulator import Simulator
from xlaserve.engine.simulation.summaries import Histogram


def make_report(simulator: Simulator) -> dict[str, Any]:
    """Latencies in seconds, shares from 0 to 1; None where the run had nothing to measure."""
    measures, runner, scheduler = simulator.measures, simulator.runner, simulator.scheduler
    seconds = simulator.clock.now
    num_finished = measures.finished.total()
    padding = runner.bucket_use.padding.total()
    return {
        "sizes": asdict(simulator.sizes),
        "costs": asdict(simulator.costs),
        "requests": {"finished": dict(measures.finished), "refused": simulator.num_refused},
        "seconds": seconds,
        "throughput": {
            "requests_per_s": _ratio(num_finished, seconds),
            "output_tokens_per_s": _ratio(measures.num_output_tokens, seconds),
            "total_tokens_per_s": _ratio(measures.num_output_tokens + measures.num_prompt_tokens, seconds),
        },
        "latency_s": {
            "time to first token": _percentiles(measures.first_token),
            "inter-token latency": _percentiles(measures.inter_token),
            "queue time": _percentiles(measures.queue_time),
        },
        "memory": {
            "usage": measures.usage.value(),
            "internal_waste": measures.waste.value(),
            "prefix_hit_rate": _ratio(scheduler.prefix_hits, scheduler.prefix_queries),
            "preemptions": scheduler.num_preemptions,
            "offloads": scheduler.block_manager.num_offloads,
            "restores": scheduler.block_manager.num_restores,
        },
        "concurrency": _concurrency(simulator),
        "steps": {
            "count": runner.commands["Body"],
            "padding_waste": _ratio(padding, padding + runner.num_tokens),
            "commands": dict(runner.commands),
        },
        "tenants": _tenants(simulator),
    }


def _percentiles(histogram: Histogram) -> dict[str, float] | None:
    if not histogram.count:
        return None
    found = {f"p{percent}": histogram.percentile(percent) for percent in (50, 90, 99)}
    return {"mean": histogram.mean(), **found, "max": histogram.maximum}


def _concurrency(simulator: Simulator) -> dict[str, float | None]:
    """`while_queued`: the mean over the time in which requests waited, so that the engine held all it could."""
    measures, contiguous = simulator.measures, simulator.sizes.contiguous_requests
    while_queued = measures.num_running_while_queued.value()
    return {
        "mean": measures.num_running.value(),
        "while_queued": while_queued,
        "max": measures.max_running,
        "contiguous": contiguous,
        "times_contiguous": None if while_queued is None else while_queued / contiguous,
    }


def _tenants(simulator: Simulator) -> dict[str, dict[str, Any]]:
    tenants = simulator.measures.tenants
    contended = sum(tenant.served_while_contended for tenant in tenants.values())
    return {
        name: {
            "requests": tenant.num_requests,
            "served_tokens": tenant.served_tokens,
            "time_to_first_token_s": _percentiles(tenant.first_token),
            "share_while_contended": _ratio(tenant.served_while_contended, contended),
        }
        for name, tenant in tenants.items()
    }


def _ratio(value: float, whole: float) -> float | None:
    return value / whole if whole else None
