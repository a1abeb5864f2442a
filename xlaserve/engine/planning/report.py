"""A plan as figures with names and units, for tables and for JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from xlaserve.engine.planning.advice import advice
from xlaserve.engine.planning.plan import CONTEXT, LENGTHS, Plan

Unit = Literal["", "bytes", "s", "ms"]


@dataclass(frozen=True)
class Figure:
    name: str  # in JSON
    label: str
    value: float | tuple[int, ...] | None  # None: not known, or the model does not fit
    unit: Unit = ""
    estimated: bool = False
    note: str = ""


def figures(plan: Plan) -> Iterator[Figure]:
    """The same ones, in the same order, for every plan of the same model."""
    yield Figure("parameters", "parameters", plan.num_params)
    yield Figure("weight_bytes", "weights", plan.weight_bytes, "bytes", note="of each device")
    yield from _memory(plan)
    yield from _kv(plan)
    yield Figure("programs", "programs", plan.num_programs)
    yield Figure(
        "compile_seconds", "to compile them", plan.compile_seconds, "s", estimated=True, note="on this machine"
    )
    yield from _floors(plan)


def _memory(plan: Plan) -> Iterator[Figure]:
    programs, estimated = plan.programs, not plan.compiled
    yield Figure("usable_bytes", "usable memory", plan.usable_bytes, "bytes", note="what jax gets of each device")
    yield Figure(
        "activation_peak_bytes", "activation peak", programs and programs.temporaries, "bytes", estimated,
        "temporaries of the largest program",
    )  # fmt: skip
    besides = programs and programs.num_bytes - programs.temporaries
    yield Figure("program_bytes", "programs besides", besides, "bytes", estimated, "code, outputs, state of the rows")


def _kv(plan: Plan) -> Iterator[Figure]:
    textbook = "2 x layers x hidden size x bytes"
    yield Figure(
        "textbook_kv_bytes_per_token", "KV per token, textbook", plan.textbook_kv_bytes, "bytes", note=textbook
    )
    heads = f"{plan.settings.model.num_kv_heads} kv heads for {plan.settings.model.num_heads} query heads"
    yield Figure("kv_bytes_per_token", "KV per token", plan.kv_bytes, "bytes", note=heads)
    sizing, estimated = plan.sizing, plan.pool_is_estimated
    pool = sizing and sizing.pool
    laid_out = pool and sum(group.bytes_per_block for group in pool.demand.groups) / pool.demand.block_size
    yield Figure("device_kv_bytes_per_token", "on each device", laid_out, "bytes", note="as laid out there")
    yield Figure("pool_bytes", "KV pool", pool and pool.num_bytes, "bytes", estimated, "of each device")
    size = f"of {plan.settings.block_size} tokens; by layer group"
    yield Figure("num_blocks", "blocks", pool and pool.num_blocks, estimated=estimated, note=size)
    yield Figure(
        "max_model_len", "longest request", sizing and sizing.max_model_len, estimated=estimated, note="tokens"
    )
    for length in LENGTHS:
        known = sizing is not None
        note = f"{plan.concurrency(length)} run at once: scheduler.max_num_seqs is {plan.settings.max_num_seqs}"
        held = plan.held(length) if known else None
        name = f"requests_of_{length}"
        yield Figure(name, f"requests of {length:,} tokens", held, estimated=estimated, note=note if known else "")


def _floors(plan: Plan) -> Iterator[Figure]:
    rows = max(plan.decode, default=plan.settings.max_num_seqs)
    for name, label, count in (("one", "1 row", 1), ("all", "all rows", rows)):
        step = plan.decode.get(count)
        note = f"{count} of {CONTEXT:,} tokens each; by {step.limit}" if step else ""
        yield Figure(
            f"itl_floor_ms_{name}", f"between tokens, {label}", step and 1e3 * step.least, "ms",
            plan.pool_is_estimated and name == "all", note,
        )  # fmt: skip
    for length in LENGTHS:
        step = plan.prefill.get(length)
        note = f"by {step.limit}" if step else ""
        label = f"to the first token, {length:,}"
        yield Figure(f"ttft_floor_ms_{length}", label, step and 1e3 * step.least, "ms", note=note)


def as_json(plan: Plan) -> dict[str, Any]:
    """Figures by name, each with its unit and whether it is estimated."""
    settings = plan.settings
    found = {
        figure.name: {"value": figure.value, "unit": figure.unit, "estimated": figure.estimated}
        for figure in figures(plan)
    }
    return {
        "target": plan.target.name,
        "devices": plan.target.num_devices,
        "fits": plan.problem is None,
        "compiled": plan.compiled,
        "dtype": settings.dtype.name,
        "quantization": settings.quantization.name if settings.quantization else "none",
        "cache_dtype": settings.kv_dtype.name,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "attention_backend": settings.backend,
        "figures": found,
        "advice": list(advice(plan)),
    }
