"""What constraints make of a step before its tokens are sampled: masks, tokens that need no sampling, and failures."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xlaserve.core.constraint import Constraint, ConstraintFailed, allows, only_token
from xlaserve.core.outputs import EngineOutput
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.step import ScheduledRow, ScheduledSample, SchedulerOutput
from xlaserve.core.update import NO_TOKEN, append_forced
from xlaserve.engine.logit_rules import has_rules
from xlaserve.runner.commands import Sample, SampleRow

MAX_FORCED = 64  # tokens of a request per step: the device is not to wait for ever for a text that is given as a whole


def constrain(scheduler: Scheduler, scheduled: SchedulerOutput, sample: Sample) -> tuple[Sample, list[EngineOutput]]:
    """`sample` with the masks of its constrained rows, while the body is under way. All earlier tokens are known.

    Where only one token may come next it is appended, and so on from there: none of them is sampled, and the request's
    next body computes them all, if together they are worth a longer body. Such rows, and those of requests that have no
    token to go on with and end, leave `sample` and `scheduled.samples`, with their drafts. Those of requests that have
    just ended are sampled all the same, and dropped.
    """
    masks: list[tuple[int, np.ndarray]] = []
    rows: list[SampleRow] = []
    sampled: list[ScheduledRow | ScheduledSample] = []
    outputs: list[EngineOutput] = []
    may_force, end = _is_worth_it(scheduled), 0
    for each in scheduled.samples:
        mine, end = sample.rows[end : end + 1 + len(each.drafts)], end + 1 + len(each.drafts)
        if (constraint := each.request.constraint) is not None and not each.request.is_finished:
            mask, appended = _go_on(scheduler, each.request, may_force)
            if appended:
                outputs += appended
                continue
            found = [mask, *_after_drafts(constraint, mask, each.drafts)]
            masks += [(place, mask) for place, mask in enumerate(found, len(rows)) if mask is not None]
            each.drafts = each.drafts[: len(found) - 1]
        rows += mine[: 1 + len(each.drafts)]
        sampled.append(each)
    scheduled.samples = sampled
    return replace(sample, rows=tuple(rows), masks=tuple(masks)), outputs


def _after_drafts(constraint: Constraint, mask: np.ndarray | None, drafts: Sequence[int]) -> list[np.ndarray | None]:
    """The mask after each draft, up to the first that may not come, or that nothing can follow. mask: of the first."""
    found: list[np.ndarray | None] = []
    ahead = constraint.copy() if drafts else constraint
    for draft in drafts:
        if mask is not None and not allows(mask, draft):
            break
        ahead.advance(draft)
        try:
            mask = ahead.mask()
        except ConstraintFailed:
            break  # as will be told if the draft is right
        found.append(mask)
    return found


def _is_worth_it(scheduled: SchedulerOutput) -> bool:
    """A body for some more tokens than rows can take half as long again (`runner/buckets.py`), for all its rows: it has
    to spare half as many tokens as there are rows from being sampled in steps of their own."""
    constraints = [each.request.constraint for each in scheduled.samples if _may_be_forced(each.request)]
    num_forced = [len(constraint.forced()) for constraint in constraints if constraint is not None]
    return 2 * sum(max(0, count - 1) for count in num_forced) >= len(scheduled.rows)


def _go_on(scheduler: Scheduler, request: Request, may_force: bool) -> tuple[np.ndarray | None, list[EngineOutput]]:
    """The mask of the request's next token, once what is forced is appended; how it ended, if it has."""
    assert request.constraint is not None
    outputs: list[EngineOutput] = []
    while not request.is_finished and len(outputs) < MAX_FORCED:
        try:
            mask = request.constraint.mask()
            if mask is not None and not mask.any():
                raise ConstraintFailed(NO_TOKEN)
        except ConstraintFailed as error:
            return None, [*outputs, scheduler.fail(request, str(error))]
        token = None if mask is None else only_token(mask)
        if token is None or not may_force or not _may_be_forced(request):
            return mask, outputs
        outputs.append(append_forced(scheduler, request, token))
    return None, outputs


def _may_be_forced(request: Request) -> bool:
    """Not where the device is to tell logprobs of each token, or count it, or may be forbidden to sample it; nor where
    it has yet to tell what the prompt was read for, which comes with the first token."""
    is_read = request.reading is None or request.reading.is_complete
    return not request.is_finished and is_read and request.params.logprobs is None and not has_rules(request)
