"""What a change of weights does to a scheduler's requests: between two steps, with nothing in flight."""

import itertools

from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler


def hold_newcomers(scheduler: Scheduler) -> None:
    """Keeps those that have not begun out of the queue, and who comes from now on, until `release_newcomers`."""
    scheduler.held.is_open = True
    begun = []
    while request := scheduler.waiting.peek():
        scheduler.waiting.pop()
        if request.has_begun:
            begun.append(request)
        else:
            scheduler.waiting.remove(request)
            scheduler.held.add(request)
    for request in begun:
        scheduler.waiting.requeue(request)


def release_newcomers(scheduler: Scheduler) -> None:
    """Queues what was held, in its order."""
    for request in scheduler.held.take_all():
        scheduler.waiting.add(request)


def change_weights(scheduler: Scheduler, version: int, *, recompute: bool) -> None:
    """Newer weights are there, for those that have not begun; with `recompute` for all, who go on with what has come
    back of them so far, computed anew."""
    scheduler.weights.add(version)
    if recompute:
        for request in list(scheduler.running):
            scheduler.requeue(request)
    for request in itertools.chain(scheduler.waiting, scheduler.held, scheduler.kept_rows):
        if recompute or not request.has_begun:
            request.use_weights(version)


def on_old_weights(scheduler: Scheduler) -> list[Request]:
    """Requests that older weights than the newest compute, and finished ones that others may yet continue."""
    if len(scheduler.weights) == 1:
        return []
    known = itertools.chain(scheduler.requests(), scheduler.kept_rows)
    return [request for request in known if request.weights_version != scheduler.weights.newest]
