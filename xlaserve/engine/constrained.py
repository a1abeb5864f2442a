"""What constraints make of a step before its tokens are sampled: masks, tokens that need no sampling, and failures."""

from dataclasses import replace

import numpy as np

from xlaserve.core.constraint import ConstraintFailed, only_token
from xlaserve.core.outputs import EngineOutput
from xlaserve.core.request import Request
from xlaserve.core.scheduler import NO_TOKEN, Scheduler
from xlaserve.core.step import SchedulerOutput
from xlaserve.engine.logit_rules import has_rules
from xlaserve.runner.commands import Sample

MAX_FORCED = 64  # tokens of a request per step: the device is not to wait for ever for a text that is given as a whole


def constrain(scheduler: Scheduler, scheduled: SchedulerOutput, sample: Sample) -> tuple[Sample, list[EngineOutput]]:
    """`sample` with the masks of its constrained rows, while the body is under way. All earlier tokens are known.

    Where only one token may come next it is appended, and so on from there: none of them is sampled, and the request's
    next body computes them all, if together they are worth a longer body. Such rows, and those of requests that have no
    token to go on with and end, leave `sample` and `scheduled.samples`. Those of requests that have just ended are
    sampled all the same, and dropped.
    """
    masks: list[tuple[int, np.ndarray]] = []
    sampled: list[int] = []
    outputs: list[EngineOutput] = []
    may_force = _is_worth_it(scheduled)
    for index, each in enumerate(scheduled.samples):
        if each.request.constraint is not None and not each.request.is_finished:
            mask, appended = _go_on(scheduler, each.request, may_force)
            if appended:
                outputs += appended
                continue
            if mask is not None:
                masks.append((len(sampled), mask))
        sampled.append(index)
    scheduled.samples = [scheduled.samples[index] for index in sampled]
    return replace(sample, rows=tuple(sample.rows[index] for index in sampled), masks=tuple(masks)), outputs


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
        outputs.append(scheduler.append_forced(request, token))
    return None, outputs


def _may_be_forced(request: Request) -> bool:
    """Not where the device is to tell logprobs of each token, or count it, or may be forbidden to sample it; nor where
    it has yet to tell what the prompt was read for, which comes with the first token."""
    is_read = request.reading is None or request.reading.is_complete
    return not request.is_finished and is_read and request.params.logprobs is None and not has_rules(request)
