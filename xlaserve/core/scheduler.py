"""Decides what each step computes. Owns the queues, the rows and (through BlockManager) the blocks; no device, no text.

There is no prefill phase and no decode phase: a request's computed tokens catch up with its known tokens, as many per
step as the token budget allows. Chunked prefill and recovery from a preemption are the same rule.

Who is next, and who loses its blocks first, is the policy's to say (xlaserve/core/waiting.py). First come, first
served keeps the order of arrival through everything: all running requests are older than all waiting ones, blocks run
out for the youngest first, and whoever lost its blocks waits in front of the newcomers. So the oldest request always
progresses, and everybody becomes the oldest some day. The same holds in every policy for its own order.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from xlaserve.core.block_manager import BlockManager, PrefixHit
from xlaserve.core.held import Held
from xlaserve.core.kept_rows import KeptRows
from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.policy import FCFS
from xlaserve.core.request import Request, RequestStatus
from xlaserve.core.speculation import NO_PLAN, Speculation
from xlaserve.core.step import ScheduledRow, ScheduledSample, SchedulerOutput
from xlaserve.core.waiting import Policy
from xlaserve.core.weights import WeightVersions


class Scheduler:
    """A request is in `held`, `waiting` or `running` until it is finished. Host work per step: O(running + new tokens).

    policy: the queue, empty; None: first come, first served. long_prefill_token_threshold: prompt tokens of one request
    per step at most. max_outputs: hidden states that a step can return, None: one per row. speculation: who gets
    drafts, None: nobody.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: Policy | None = None,
        long_prefill_token_threshold: int | None = None,
        max_outputs: int | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        assert max_num_seqs >= 1
        assert max_num_batched_tokens >= 1
        self.block_manager = block_manager
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_chunk = long_prefill_token_threshold or max_num_batched_tokens
        self.max_outputs = max_outputs or max_num_seqs
        self.speculation = speculation
        self.waiting = FCFS() if policy is None else policy
        self.running: dict[Request, None] = {}  # any leaves in O(1)
        self.held = Held()
        self.weights = WeightVersions()
        self.kept_rows = KeptRows()
        self.num_preemptions = 0
        self.num_forks = 0  # answers that began with another's blocks
        self.prefix_queries = 0  # tokens looked for in shared blocks,
        self.prefix_hits = 0  # and found
        self._clock = clock
        self._free_rows = list(reversed(range(max_num_seqs)))
        self._refused: tuple[Request, int] | None = None  # the head of the queue, when it last did not fit

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.held)

    def requests(self) -> Iterator[Request]:
        """All that are not finished, forks that have not begun included."""
        for request in itertools.chain(self.running, self.waiting, self.held):
            yield request
            yield from request.forks

    def add(self, request: Request) -> None:
        """Queues a request that the pool can hold and that has room for at least one token, unless its
        prompt is only read (the caller checks).

        Its forks are added with it: as many rows are not needed at once, but the prompt is then computed again, as far
        as it is not found in shared blocks.
        """
        for each in (request, *request.forks):
            assert 0 < each.num_prompt_tokens <= each.max_total_tokens <= self.block_manager.capacity
            assert each.samples or (each.reading is not None and not each.forks)
        if request.continues is None:
            (self.held if self.held.is_open else self.waiting).add(request)
        else:  # its turn has come before: it goes ahead of the newcomers, as what has lost its blocks does
            self.waiting.adopt(request, request.continues)
            self.waiting.requeue(request)

    def schedule(self) -> SchedulerOutput:
        """The next step: running requests first, best first, then new ones as far as budget, rows and blocks go.

        Prompts get what the running decodes leave of the budget: a stream waits for one step between two tokens.
        All are computed by one set of weights; where there are several they take turns.
        """
        output = SchedulerOutput()
        for version in self.weights.turns():
            if not output.rows:
                self._fill(output, version)
        output.rows.sort(key=attrgetter("row"))
        output.offloads = self.block_manager.end_step()
        return output

    def _fill(self, output: SchedulerOutput, version: int) -> None:
        output.weights_version = version
        running = self.waiting.in_order(self.running)
        self._make_room(running, output)
        num_displaced = len(output.preempted)
        if len(self.weights) > 1:
            running = [request for request in running if request.weights_version == version]
        num_new_tokens = [request.num_new_tokens for request in running]
        plan = NO_PLAN
        if self.speculation:
            others = len(self.running) - len(running)  # of other weights
            room = min(self.max_num_batched_tokens, self.max_outputs - others)
            plan = self.speculation.plan(list(zip(running, num_new_tokens, strict=True)), room)
        num_decodes = num_new_tokens.count(1) - len(plan.held)  # not scheduled yet
        for request, num_tokens in zip(running, num_new_tokens, strict=True):
            if not num_tokens or request in plan.held:
                continue  # its last token is in flight, or what it is to go on with
            budget = self.max_num_batched_tokens - output.num_tokens
            if not budget or request.row < 0:
                break  # no budget left; or preempted for a better one, and so are all after it
            if num_tokens == 1:
                num_decodes -= 1
            budget -= num_decodes
            if budget > 0:
                self._schedule_request(request, num_tokens if num_tokens < budget else budget, output)
        if plan.drafts:
            self._add_drafts(plan.drafts, output)
        parents = [sample.request for sample in output.samples if sample.request.forks]
        for parent in parents:  # now that nobody will be preempted any more
            self._begin_forks(parent, output)
        if len(output.preempted) == num_displaced:  # else the newcomer would be the next victim
            self._admit(output)

    def _make_room(self, running: list[Request], output: SchedulerOutput) -> None:
        """Running requests give way to the head of the queue, the worst first, where the policy has it so.

        Takes them off the end of `running`, which is in the policy's order.
        """
        while running and (request := self.waiting.peek()):
            displaces = self.waiting.displaces(request, running[-1])
            if not self._can_begin(request, output) or not displaces or self._find_place(request) is not None:
                break
            output.preempted.append(running.pop())
            self._preempt(output.preempted[-1])

    def _can_begin(self, request: Request, output: SchedulerOutput) -> bool:
        """Not with other weights than the step's, nor preempted a moment ago: its last token's id is not known yet."""
        return request.weights_version == output.weights_version and not request.num_in_flight

    def _find_place(self, request: Request) -> PrefixHit | None:
        """With which shared blocks the request can start: there is a row, a token of each step's budget, and blocks.

        All it knows must fit, with a block to spare for each request that will grow beside it: admitted with less, it
        would be preempted within a few steps, again and again.
        """
        if not self._free_rows or len(self.running) >= self.max_num_batched_tokens:
            return None
        if not self.kept_rows.leave_room(request, len(self._free_rows), self.running):
            return None
        if self._refused == (request, self.block_manager.num_releases) and self.running:
            return None  # nothing was given back since
        spare = len(self.running) + len(request.forks) if self.running else 0
        hit = self.block_manager.match(request)
        if self.block_manager.can_start(request, hit, spare):
            return hit
        self._refused = request, self.block_manager.num_releases
        return None

    def _admit(self, output: SchedulerOutput) -> None:
        """Nobody overtakes the head of the queue, however long it has to wait for blocks, or for a step's outputs."""
        while output.num_tokens < self.max_num_batched_tokens and (request := self.waiting.peek()):
            if not self._can_begin(request, output):
                break
            if output.num_outputs >= self.max_outputs:  # only where prompts are read, or drafts made
                break
            hit = self._find_place(request)
            if hit is None:
                break
            self.waiting.pop()
            self.kept_rows.open(request)
            start = self.block_manager.start(request, hit)
            if start.restores or start.copies:
                output.move(start.restores, start.copies)
            if request.first_scheduled_time is None:
                request.num_cached_tokens = hit.num_tokens
                self.prefix_queries += request.num_prompt_tokens
                self.prefix_hits += hit.num_tokens
            self._take_row(request, output)
            budget = self.max_num_batched_tokens - output.num_tokens
            self._schedule_request(request, min(request.num_new_tokens, budget), output, admitted=True)
            if request.forks and output.rows[-1].samples:
                self._begin_forks(request, output)

    def _take_row(self, request: Request, output: SchedulerOutput) -> None:
        """Its tables are as its computed tokens need them."""
        self.running[request] = None
        request.status = RequestStatus.RUNNING
        request.row = self._free_rows.pop()
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self._clock()
        output.admitted.append(request)

    def _schedule_request(
        self, request: Request, num_tokens: int, output: SchedulerOutput, admitted: bool = False
    ) -> None:
        """Gives the request its next tokens, up to `num_tokens`, and the blocks for them.

        Preempts the worst if need be. Called for each row of each step: of what it calls only `charge` is not rare.
        """
        start = request.num_computed_tokens
        if request.reading is not None:
            num_tokens = min(num_tokens, request.reading.longest_chunk(start, self._room_to_read(output, admitted)))
        end = start + (num_tokens if num_tokens < self.max_chunk else self.max_chunk)
        if end > request.num_own_slots and not self._allocate(request, end, output, admitted):
            return
        num_tokens, num_known = end - start, len(request.token_ids)
        token_ids = tuple(request.token_ids[start:end]) if start < num_known else None
        samples = end == num_known + request.num_in_flight and end < request.max_total_tokens
        scheduled = ScheduledRow(request, request.row, start, num_tokens, token_ids, samples)
        output.rows.append(scheduled)
        output.num_tokens += num_tokens
        request.num_computed_tokens = end
        if self.waiting.charges:
            self.waiting.charge(request, num_tokens)
        if samples:
            output.samples.append(scheduled)
            output.num_outputs += 1
            request.num_in_flight += 1
        if request.reading is not None:
            output.read(request, request.reading, start, end)

    def _add_drafts(self, drafts: Mapping[Request, tuple[int, ...]], output: SchedulerOutput) -> None:
        """They get what tokens and blocks the step's rows have left: nobody is preempted for them."""
        for row in output.rows:
            request, room = row.request, self.max_num_batched_tokens - output.num_tokens
            if not (mine := drafts.get(request, ())[:room]):
                continue
            end = row.position + len(mine)
            if end > request.num_own_slots:
                allocation = self.block_manager.allocate(request, end)
                if allocation is None:
                    continue
                output.table_deltas += [(g, request.row, column, block) for g, column, block in allocation.entries]
            row.drafts, request.num_drafts = mine, len(mine)
            output.num_tokens += len(mine)
            output.num_outputs += len(mine)

    def _room_to_read(self, output: SchedulerOutput, admitted: bool) -> int:
        """Of a step's outputs, what one request may have: at least one, as no other row needs more than one, and one
        is left for a newcomer, whom a long prompt that is read would keep out."""
        room = self.max_outputs - output.num_outputs
        if not admitted:  # of those that run, some may not have been given theirs
            room -= len(self.running) - len(output.rows) - 1
        assert room >= 1
        return room - (room > 1 and bool(self.waiting and self._free_rows))

    def _allocate(self, request: Request, num_tokens: int, output: SchedulerOutput, admitted: bool) -> bool:
        """Blocks for as many tokens in all; False when the request had to be preempted itself."""
        while (allocation := self.block_manager.allocate(request, num_tokens)) is None:
            victim = self.waiting.victim(self.running)
            self._preempt(victim)
            output.preempted.append(victim)
            if victim is request:
                return False
        if allocation.entries and not admitted:
            output.table_deltas += [(group, request.row, column, block) for group, column, block in allocation.entries]
        if allocation.copies:
            output.move((), allocation.copies)
        return True

    def _begin_forks(self, request: Request, output: SchedulerOutput) -> None:
        """They begin with the request's blocks, and the hidden state of the first sample it has just been given.

        Only as many as have a row and a token of each step's budget: else the best would not be served in every step.
        """
        position = request.num_tokens - 1
        forks, request.forks = request.forks, []
        room = min(len(self._free_rows), max(0, self.max_num_batched_tokens - len(self.running)))
        for fork in forks[:room]:
            self.num_forks += 1
            self.block_manager.fork(request, fork)
            self.waiting.adopt(fork, request)
            self._take_row(fork, output)
            fork.num_in_flight += 1
            output.samples.append(ScheduledSample(fork, request.row, position))
            output.num_outputs += 1
        self._requeue_forks(request, forks[room:])

    def _requeue_forks(self, parent: Request, forks: list[Request]) -> None:
        """From now on they are requests like any other, begun when `parent` was, and ahead of the newcomers."""
        for fork in forks:
            fork.first_scheduled_time = parent.first_scheduled_time
            self.waiting.adopt(fork, parent)
            self.waiting.requeue(fork)

    def _preempt(self, request: Request) -> None:
        """A token in flight is not lost: it comes back to the request, not the row."""
        self.num_preemptions += 1
        request.num_preemptions += 1
        self.requeue(request)

    def requeue(self, request: Request) -> None:
        """Everything is computed anew, later; ahead of the newcomers."""
        self._release(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        self.waiting.requeue(request)

    def _release(self, request: Request) -> None:
        """Takes row and blocks. Steps in flight may still write there: they run before whatever is launched next."""
        del self.running[request]
        self.block_manager.free(request)
        self._free_rows.append(request.row)
        request.row = -1

    def fail(self, request: Request, error: str, reason: FinishReason = "error") -> EngineOutput:
        """Ends a request that is to be told why."""
        self.finish(request, reason)
        return EngineOutput(request.request_id, finish_reason=reason, error=error)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request wherever it is; row and blocks are free at once. Its tokens in flight will be dropped.

        Forks of it that have not begun go on without it.
        """
        assert not request.is_finished
        if request in self.held:
            self.held.remove(request)
        elif request.status is RequestStatus.WAITING and request not in self.waiting:  # a fork that has not begun
            parent = next(each for each in self.requests() if request in each.forks)
            parent.forks.remove(request)
        else:
            if request.status is RequestStatus.RUNNING:
                if reason != "error":  # else what it computed may not be finite either
                    self.block_manager.publish_last(request)
                self._release(request)
            forks, request.forks = request.forks, []
            self._requeue_forks(request, forks)
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def restart(self) -> None:
        """After the device state was lost, and all steps in flight with it: every running request is computed anew."""
        for request in list(self.running):
            self.requeue(request)
        for request in self.waiting:
            request.num_in_flight = request.num_drafts = 0
            if request.reading is not None:
                request.reading.restart()
        self.block_manager.forget_all()
