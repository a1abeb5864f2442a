"""Drives the real LLMEngine, Scheduler and BlockManager through a trace, over a SimulatedRunner on a virtual clock."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from xlaserve.config import Config
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.host_pool import HostTier
from xlaserve.core.policy import PolicyName, make_policy
from xlaserve.core.request import Request
from xlaserve.core.scheduler import Scheduler
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.simulation.costs import CostModel
from xlaserve.engine.simulation.measures import Measures
from xlaserve.engine.simulation.runner import SimulatedRunner, VirtualClock
from xlaserve.engine.simulation.trace import TraceRequest
from xlaserve.errors import ConfigError
from xlaserve.runner.buckets import make_buckets
from xlaserve.sampling_params import SamplingParams

# What the configuration leaves open. The pool holds ten requests of the greatest length, and the null block.
MAX_MODEL_LEN = 4096  # tokens
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2048
_REQUESTS_IN_POOL = 10

BYTES_PER_TOKEN = 128 * 2**10  # that host memory holds, as the default costs have it

_TOKEN_IDS = 2**30  # prefixes take their ids from below, what is a prompt's own from above


@dataclass(frozen=True)
class Sizes:
    """What a configuration says, or the defaults above."""

    max_model_len: int  # tokens
    block_size: int  # tokens
    num_blocks: int  # the null block included
    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool
    prefix_caching: bool
    policy: PolicyName = "fcfs"
    long_prefill_token_threshold: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)  # by tenant; others have 1
    host_blocks: int = 0  # 0: no host tier

    @classmethod
    def of(cls, config: Config) -> "Sizes":
        """Raises ConfigError for a pool given in bytes: no model says what a block takes."""
        cache, scheduler = config.cache, config.scheduler
        if cache.memory is not None:
            raise ConfigError("cache.memory is set: a simulation has no bytes; give cache.num_blocks in its place")
        max_model_len = config.model.max_model_len or MAX_MODEL_LEN
        num_blocks = cache.num_blocks or 1 + _REQUESTS_IN_POOL * -(-max_model_len // cache.block_size)
        return cls(
            max_model_len=min(max_model_len, (num_blocks - 1) * cache.block_size),
            block_size=cache.block_size,
            num_blocks=num_blocks,
            max_num_seqs=scheduler.max_num_seqs or MAX_NUM_SEQS,
            max_num_batched_tokens=scheduler.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
            async_scheduling=scheduler.async_scheduling,
            policy=scheduler.policy,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            weights={name: tenant.weight for name, tenant in config.server.api_keys.items()},
            prefix_caching=cache.prefix_caching,
            host_blocks=(cache.host_memory or 0) // (BYTES_PER_TOKEN * cache.block_size),
        )

    @property
    def contiguous_requests(self) -> int:
        """How many requests the same pool would hold if each were given `max_model_len` slots in one piece."""
        return (self.num_blocks - 1) * self.block_size // self.max_model_len


class Simulator:
    """One run. Deterministic: the same trace gives the same figures."""

    def __init__(self, sizes: Sizes, costs: CostModel):
        self.sizes = sizes
        self.costs = costs
        self.measures = Measures()
        self.num_refused = 0  # prompts that no room is left behind
        self.clock = VirtualClock(self._passing)
        buckets = make_buckets(sizes.max_num_seqs, sizes.max_num_batched_tokens)
        self.runner = SimulatedRunner(costs, buckets, self.clock)
        self.scheduler = Scheduler(
            BlockManager(
                [GroupSpec(sizes.num_blocks)],
                sizes.block_size,
                max_step_tokens=sizes.max_num_batched_tokens,
                prefix_caching=sizes.prefix_caching,
                host=HostTier((sizes.host_blocks,), 1, sizes.host_blocks) if sizes.host_blocks else None,
            ),
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            policy=make_policy(sizes.policy, sizes.weights),
            long_prefill_token_threshold=sizes.long_prefill_token_threshold,
            clock=self.clock,
        )
        self.engine = LLMEngine(self.scheduler, self.runner, async_scheduling=sizes.async_scheduling)
        self._prompts = _Prompts(sizes.max_model_len)
        self._ids = map(str, count())

    def run(self, trace: Iterable[TraceRequest], on_progress: Callable[[int], None] = lambda finished: None) -> None:
        """Until every request of `trace`, which is by time of arrival, has finished.

        on_progress(requests finished so far): called after each step. Raises RuntimeError when the scheduler stalls.
        """
        arrivals = _Ahead(iter(trace))
        while arrivals.next or self.engine.has_work:
            if arrivals.next and not self.engine.has_work:
                self.clock.advance(arrivals.next.arrival)
            while arrivals.next and arrivals.next.arrival <= self.clock.now:
                self._submit(arrivals.take())
            if self.engine.has_work:
                self._step()
                on_progress(self.measures.finished.total())

    def _step(self) -> None:
        before = self.clock.now
        outputs = self.engine.step()
        self.measures.delivered(outputs, self.clock.now)
        if not (outputs or self.engine.last_step_tokens or self.clock.now > before):
            raise RuntimeError(f"{len(self.scheduler.waiting)} requests wait and the scheduler gives nothing to do")

    def _submit(self, asked: TraceRequest) -> None:
        """As GenerationService does: a prompt that is too long is refused, an output is cut to what is left."""
        limit = self.sizes.max_model_len
        if asked.prompt_tokens >= limit:
            self.num_refused += 1
            return
        request = Request(
            request_id=next(self._ids),
            prompt_ids=self._prompts.ids(asked),
            params=_PARAMS,
            max_total_tokens=min(asked.prompt_tokens + asked.output_tokens, limit),
            stop_ids=frozenset(),
            seed=0,
            priority=asked.priority,
            tenant=asked.tenant,
            cache_salt=asked.cache_salt,
            arrival_time=asked.arrival,
        )
        self.measures.arrived(request, asked.tenant)
        self.engine.add_request(request)

    def _passing(self, seconds: float) -> None:
        self.measures.passing(self.clock.now, seconds, self.scheduler)


_PARAMS = SamplingParams(temperature=0, max_tokens=None)


class _Ahead:
    """An iterator of which one may see what comes next; None at its end."""

    def __init__(self, requests: Iterator[TraceRequest]):
        self._requests = requests
        self.next = next(requests, None)

    def take(self) -> TraceRequest:
        taken, self.next = self.next, next(self._requests, None)
        assert taken is not None
        return taken


class _Prompts:
    """Token ids that are equal where prompts share a prefix and differ everywhere else."""

    def __init__(self, max_model_len: int):
        self._max_model_len = max_model_len
        self._prefixes: dict[str, int] = {}  # name to its first id
        self._own = 0  # ids used so far

    def ids(self, request: TraceRequest) -> list[int]:
        first = self._prefixes.setdefault(request.prefix, len(self._prefixes) * self._max_model_len % _TOKEN_IDS)
        num_own = request.prompt_tokens - request.prefix_tokens
        start = _TOKEN_IDS + self._own % (_TOKEN_IDS - self._max_model_len)
        self._own += num_own
        return [*range(first, first + request.prefix_tokens), *range(start, start + num_own)]
