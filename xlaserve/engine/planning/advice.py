"""What limits a plan, and what to change, in words."""

from collections.abc import Iterator

from xlaserve.engine.kv_budget import mib
from xlaserve.engine.planning.plan import CONTEXT, Plan
from xlaserve.targets import TARGETS, Target

FULL = 0.9  # of the usable memory: as much as weights may take of a target that is proposed, less a tenth for the pool


def advice(plan: Plan) -> Iterator[str]:
    """Sentences: what does not fit, else what limits how many requests run, their pace and their start."""
    if plan.problem is not None:
        yield plan.problem
        yield from _larger_targets(plan)
        return
    yield from _of_concurrency(plan)
    yield from _of_length(plan)
    yield from _of_decode(plan)
    yield from _of_prefill(plan)


def _larger_targets(plan: Plan) -> Iterator[str]:
    fitting = [target.name for target in TARGETS.values() if _would_fit(plan, target)]
    if fitting:
        yield f"The weights fit on {', '.join(fitting)}."


def _would_fit(plan: Plan, target: Target) -> bool:
    model, count, usable = plan.settings.model, target.num_devices, target.usable_bytes()
    if usable is None or model.num_kv_heads % count or model.intermediate_size % count or model.vocab_size % count:
        return False
    return plan.total_weight_bytes / count <= FULL * plan.share * usable


def _of_concurrency(plan: Plan) -> Iterator[str]:
    rows = plan.settings.max_num_seqs
    held = plan.held(CONTEXT)
    if plan.sizing is None or not held:
        return
    if held < rows:
        yield (
            f"Concurrency is limited by KV memory: the pool holds {held} requests of {CONTEXT:,} tokens, and "
            f"scheduler.max_num_seqs is {rows}. More devices, or a target with more memory, hold more; so does a "
            "larger cache.memory_utilization."
        )
    else:
        yield (
            f"Concurrency is limited by scheduler.max_num_seqs, {rows}: the pool holds {held} requests of {CONTEXT:,} "
            "tokens. Raise it for throughput; what no request uses keeps known prefixes."
        )


def _of_length(plan: Plan) -> Iterator[str]:
    sizing, wanted = plan.sizing, plan.settings.max_model_len
    if sizing is not None and sizing.max_model_len < wanted:
        yield (
            f"Requests are limited to {sizing.max_model_len:,} tokens of the model's {wanted:,} by the KV pool, "
            f"{mib(sizing.pool.num_bytes)}: more devices, or a target with more memory, hold longer ones."
        )


def _of_decode(plan: Plan) -> Iterator[str]:
    if not plan.decode:
        return
    rows, step = max(plan.decode.items())
    alone = plan.decode[1]
    if step.limit == "bandwidth":
        yield (
            f"Decoding is limited by bandwidth: of the {1e3 * step.least:.1f} ms of a step of {rows} rows, "
            f"{1e3 * alone.least:.1f} ms are those of a single row, which reads all weights. More rows share that; "
            "more devices shorten it."
        )
    else:
        yield (
            f"Decoding {rows} rows is limited by arithmetic, {1e3 * step.arithmetic:.1f} ms a step: more rows bring no "
            "more tokens per second. More devices do."
        )


def _of_prefill(plan: Plan) -> Iterator[str]:
    if not plan.prefill:
        return
    length, step = max(plan.prefill.items())
    if step.limit == "arithmetic":
        yield (
            f"Prompts are limited by arithmetic: {1e3 * step.least:,.0f} ms for {length:,} tokens. More devices, and "
            "prefixes that requests share, shorten that."
        )
    else:
        yield (
            f"Prompts are limited by bandwidth: each step of {plan.settings.max_num_batched_tokens} tokens reads all "
            "weights. Raise scheduler.max_num_batched_tokens."
        )
