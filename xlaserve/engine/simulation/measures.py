"""What a simulated run is judged by: latencies, memory, concurrency and fairness. Bounded in memory."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from xlaserve.core.outputs import EngineOutput
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.engine.occupancy import internal_waste
from xlaserve.engine.simulation.summaries import Curve, Histogram, TimeAverage


@dataclass
class Tenant:
    num_requests: int = 0
    served_tokens: int = 0  # prompt and output, computed for it
    served_while_contended: int = 0  # of these, while every tenant had a request that waited for its first step
    first_token: Histogram = field(default_factory=Histogram)  # seconds from arrival
    queue: deque[Request] = field(default_factory=deque)  # by arrival; those that have been scheduled leave late

    def is_backlogged(self) -> bool:
        while self.queue and (self.queue[0].first_scheduled_time is not None or self.queue[0].is_finished):
            self.queue.popleft()
        return bool(self.queue)


class Measures:
    """Told of arrivals, of outputs, and of each stretch of time before it passes."""

    def __init__(self):
        self.first_token = Histogram()  # seconds from arrival
        self.inter_token = Histogram()  # seconds between two tokens of a request
        self.queue_time = Histogram()  # seconds from arrival to the first step
        self.finished: Counter[str] = Counter()  # requests by reason
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0  # of the requests that gave a token
        self.usage = TimeAverage()  # share of the blocks in use
        self.waste = TimeAverage()  # share of the allocated slots that hold no token
        self.num_running = TimeAverage()
        self.num_running_while_queued = TimeAverage()  # only while requests wait: the pool or the rows are the limit
        self.max_running = 0
        self.curve = Curve()  # (time, usage, filled usage, running, waiting)
        self.tenants: dict[str, Tenant] = {}
        self._tenant_of: dict[str, Tenant] = {}  # by request id, of unfinished ones
        self._requests: dict[str, Request] = {}

    def arrived(self, request: Request, tenant_name: str) -> None:
        tenant = self.tenants.setdefault(tenant_name, Tenant())
        tenant.num_requests += 1
        tenant.queue.append(request)
        self._requests[request.request_id] = request
        self._tenant_of[request.request_id] = tenant

    def passing(self, now: float, seconds: float, scheduler: Scheduler) -> None:
        """For `seconds` from `now` on things stay as they are."""
        blocks = scheduler.block_manager
        usage, waste = blocks.num_used_blocks / blocks.num_blocks, internal_waste(scheduler)
        num_running, num_waiting = len(scheduler.running), len(scheduler.waiting)
        self.usage.add(usage, seconds)
        self.num_running.add(num_running, seconds)
        self.max_running = max(self.max_running, num_running)
        if usage:
            self.waste.add(waste, seconds)
        if num_waiting:
            self.num_running_while_queued.add(num_running, seconds)
        self.curve.offer(now, usage, usage * (1 - waste), num_running, num_waiting)

    def delivered(self, outputs: Iterable[EngineOutput], now: float) -> None:
        """As EngineLoop observes them; also sets the requests' times."""
        backlogged = [tenant.is_backlogged() for tenant in self.tenants.values()]
        contended = len(backlogged) > 1 and all(backlogged)
        gaps: Counter[float] = Counter()  # most rows of a step have waited equally long
        for output in outputs:
            request = self._requests[output.request_id]
            if output.token_ids:
                served = len(output.token_ids)
                tenant = self._tenant_of[output.request_id]
                if request.last_token_time is None:
                    served += request.num_prompt_tokens - request.num_cached_tokens
                    self._first_token(request, tenant, now)
                else:
                    gaps[now - request.last_token_time] += 1
                request.last_token_time = now
                self.num_output_tokens += len(output.token_ids)
                tenant.served_tokens += served
                tenant.served_while_contended += served if contended else 0
            if output.finish_reason:
                request.finish_time = now
                self.finished[output.finish_reason] += 1
                del self._requests[output.request_id], self._tenant_of[output.request_id]
        for gap, count in gaps.items():
            self.inter_token.add(gap, count)

    def _first_token(self, request: Request, tenant: Tenant, now: float) -> None:
        assert request.first_scheduled_time is not None
        request.first_token_time = now
        self.first_token.add(now - request.arrival_time)
        tenant.first_token.add(now - request.arrival_time)
        self.queue_time.add(request.first_scheduled_time - request.arrival_time)
        self.num_prompt_tokens += request.num_prompt_tokens
