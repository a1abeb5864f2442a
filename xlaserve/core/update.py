"""What a step that has come back does to a scheduler's requests."""

from collections.abc import Sequence

from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.reading import ReadResult
from xlaserve.core.request import Request, RequestStatus
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.step import SchedulerOutput, StepResult, logprobs_of

NOT_FINITE = "The model's output for this request was not finite (NaN or infinity); it was stopped."
NO_TOKEN = "What was asked of the output allows no token of this model here."


def update(scheduler: Scheduler, step: SchedulerOutput, result: StepResult) -> list[EngineOutput]:
    """Gives a step's tokens to their requests, preempted ones included; drops those of finished ones.

    Of a request with drafts these are the tokens that its drafts foretold, and the one after them.
    """
    scheduler.block_manager.offloads_arrived(step.offloads)
    outputs: list[EngineOutput] = []
    finished = RequestStatus.FINISHED  # looked up once: Python 3.11 takes a while to find an enum's member
    tokens, ok, entry = result.tokens.tolist(), result.ok.tolist(), 0
    for sample in step.samples:
        request, drafts, first = sample.request, sample.drafts, entry
        entry += 1 + len(drafts)
        if request.status is finished:
            continue
        request.num_in_flight -= 1
        last = first
        while last - first < len(drafts) and ok[last] and tokens[last] == drafts[last - first]:
            last += 1
        if drafts and scheduler.speculation:
            scheduler.speculation.counts.add(len(drafts), last - first)
        is_good = ok[last] and tokens[last] >= 0
        if mine := tokens[first : last + is_good]:  # what goes wrong after drafts is met again, without them
            output = _append(scheduler, request, mine)
            output.logprobs = logprobs_of(request, result, range(first, first + len(output.token_ids)))
            outputs.append(output)
        else:
            outputs.append(scheduler.fail(request, NO_TOKEN if ok[last] else NOT_FINITE))
    for scheduled in step.rows:
        if scheduled.request.row >= 0:
            scheduler.block_manager.publish(scheduled.request)
    return outputs


def append_forced(scheduler: Scheduler, request: Request, token: int) -> EngineOutput:
    """The request's next token, which the step that has just been scheduled is not to sample after all.

    What was to be sampled before it has come back. It is computed like any known token, in the next step.
    """
    request.num_in_flight = 0
    return _append(scheduler, request, [token])


def update_readings(scheduler: Scheduler, step: SchedulerOutput, results: Sequence[ReadResult]) -> list[EngineOutput]:
    """Gives what a step has read, in the order of READING_KINDS, to who asked for it: before `update`."""
    outputs = []
    failed = step.receive_readings(results)
    for request, reading in ((each.request, each.reading) for each in step.readings):
        if request.is_finished:
            continue
        if request in failed:
            outputs.append(scheduler.fail(request, NOT_FINITE))
        elif reading.is_complete and not request.samples:
            scheduler.finish(request, "length")
            outputs.append(EngineOutput(request.request_id, finish_reason="length", read=reading.outcome()))
    return outputs


def _append(scheduler: Scheduler, request: Request, tokens: Sequence[int]) -> EngineOutput:
    """The request's next tokens, up to one that ends it. All but the last have been computed, as drafts."""
    finish_reason: FinishReason | None = None
    stop_reason = None
    read = None
    count = 0
    for token in tokens:
        if count and request.row >= 0:  # else it was preempted meanwhile
            request.num_computed_tokens += 1
        request.token_ids.append(token)
        count += 1
        if request.constraint is not None:
            request.constraint.advance(token)
        if token in request.stop_ids:
            finish_reason = "stop"
            stop_reason = None if token in request.eos_ids else token
            break
        if len(request.token_ids) >= request.max_total_tokens:
            finish_reason = "length"
            break
    if request.num_drafts:
        request.num_drafts = 0
        scheduler.block_manager.trim(request)
    if request.reading is not None and request.num_output_tokens == 1:
        read = request.reading.outcome()
    if count > 1 and scheduler.waiting.charges:  # nothing, if it was preempted meanwhile
        scheduler.waiting.charge(request, count - 1)
    if finish_reason:
        scheduler.finish(request, finish_reason)
    return EngineOutput(request.request_id, tuple(tokens[:count]), None, finish_reason, stop_reason, read=read)
