"""Prometheus metrics of one engine. After the prefix `xlaserve:` they have vLLM's names, and so fit its dashboards.

Every series is there from the start, at 0. What the scheduler and the compilation log know anyway is read when scraped.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from xlaserve.core.block_manager import BlockManager
from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.request import Request
from xlaserve.core.speculation import DraftCounts
from xlaserve.engine.histogram import Histogram as TokenHistogram
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.occupancy import NOTHING, SECONDS, Occupancy, take_occupancy
from xlaserve.engine.startup import StartupFacts

PREFIX = "xlaserve:"
_COMPILATION_REASONS = ("start-up", "background", "unexpected")  # always shown; others once they occur

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by the level of the sleep

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40)
_REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920)
_SWAP_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_TOKENS = tuple(2**n for n in range(18))


class EngineMetrics:
    """`observe_*` are called by the engine's thread only; `render` by any."""

    def __init__(self, model_name: str, engine: LLMEngine, startup: StartupFacts):
        self.registry = CollectorRegistry()
        labels = {"model_name": model_name}
        self._scheduler = engine.scheduler
        self._occupancy = NOTHING
        self._occupancy_time = -SECONDS
        self.registry.register(_ReadWhenScraped(labels, engine, lambda: self._occupancy, startup))

        def counter(name: str, text: str) -> Counter:
            return Counter(PREFIX + name, text, tuple(labels), registry=self.registry).labels(**labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(PREFIX + name, text, tuple(labels), buckets=buckets, registry=self.registry)
            return family.labels(**labels)

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of the requests that gave a token")
        self._generation_tokens = counter("generation_tokens", "Tokens generated")
        finished = Counter(
            f"{PREFIX}request_success",
            "Requests that ended, by reason",
            (*labels, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {
            reason: finished.labels(**labels, finished_reason=reason) for reason in get_args(FinishReason)
        }
        self._iteration_tokens = histogram("iteration_tokens_total", "Tokens computed in a step", _TOKENS)
        self._request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self._request_generation_tokens = histogram("request_generation_tokens", "Output tokens of a request", _TOKENS)
        self._first_token = histogram("time_to_first_token_seconds", "From arrival to first token", _REQUEST_SECONDS)
        name, text = "inter_token_latency_seconds", "Between two tokens of a request"
        self._inter_token = TokenHistogram(PREFIX + name, text, labels, _TOKEN_SECONDS)
        self.registry.register(self._inter_token)
        self._per_output_token = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after a request's first", _TOKEN_SECONDS
        )
        self._end_to_end = histogram("e2e_request_latency_seconds", "From arrival to end", _REQUEST_SECONDS)
        self._weight_swap = histogram(
            "weight_swap_seconds", "From the order to the end of the old weights", _SWAP_SECONDS
        )
        self._queue_time = histogram("request_queue_time_seconds", "From arrival to first step", _REQUEST_SECONDS)

    def observe_step(self, num_tokens: int) -> None:
        """num_tokens: 0 when the step launched nothing, which is not counted."""
        if num_tokens:
            self._iteration_tokens.observe(num_tokens)
        if (now := time.monotonic()) - self._occupancy_time >= SECONDS:
            self._occupancy, self._occupancy_time = take_occupancy(self._scheduler), now

    def observe_first_token(self, request: Request, now: float) -> None:
        assert request.first_scheduled_time is not None
        self._queue_time.observe(request.first_scheduled_time - request.arrival_time)
        self._first_token.observe(now - request.arrival_time)
        self._prompt_tokens.inc(request.num_prompt_tokens)

    def observe_next_token(self, seconds: float) -> None:
        """`seconds` since the request's token before."""
        self._inter_token.observe(seconds)

    def observe_tokens(self, count: int) -> None:
        self._generation_tokens.inc(count)

    def observe_end(self, request: Request, output: EngineOutput, now: float) -> None:
        """`output` is the request's last one, already counted by the others."""
        assert output.finish_reason is not None
        self._finished[output.finish_reason].inc()
        self._end_to_end.observe(now - request.arrival_time)
        self._request_prompt_tokens.observe(request.num_prompt_tokens)
        self._request_generation_tokens.observe(request.num_output_tokens)
        if request.num_output_tokens > 1 and request.first_token_time and request.last_token_time:
            seconds = request.last_token_time - request.first_token_time
            self._per_output_token.observe(seconds / (request.num_output_tokens - 1))

    def observe_swap(self, seconds: float) -> None:
        """From the order to the end of the old weights. By any thread."""
        self._weight_swap.observe(seconds)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


class _ReadWhenScraped(Collector):
    def __init__(
        self,
        labels: Mapping[str, str],
        engine: LLMEngine,
        occupancy: Callable[[], Occupancy],
        startup: StartupFacts,
    ):
        self._labels = labels
        self._engine = engine
        self._occupancy = occupancy
        self._startup = startup

    def collect(self) -> Iterable[Metric]:
        scheduler = self._engine.scheduler
        yield self._gauge("num_requests_running", "Requests that have a row", len(scheduler.running))
        yield self._gauge("num_requests_waiting", "Requests that wait for one", scheduler.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "KV blocks in use, 0 to 1", scheduler.block_manager.usage())
        yield from self._blocks(scheduler.block_manager)
        occupancy = self._occupancy() if scheduler.has_requests else NOTHING
        yield self._gauge("kv_internal_waste", "Part of the used blocks without a token", occupancy.internal_waste)
        yield from self._queue(occupancy if scheduler.num_waiting else NOTHING)
        padding = self._engine.bucket_use.padding.total()
        yield self._counter("padding_tokens", "Tokens computed for no request, to fill a program's size", padding)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked for in blocks", scheduler.prefix_queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found there", scheduler.prefix_hits)
        yield self._counter("num_preemptions", "Requests that lost their blocks", scheduler.num_preemptions)
        manager = scheduler.block_manager
        yield self._counter("num_offloads", "KV blocks copied to host memory", manager.num_offloads)
        yield self._counter("num_restores", "KV blocks brought back from there", manager.num_restores)
        sleep = GaugeMetricFamily(
            f"{PREFIX}engine_sleep_state", "1 for the state it is in", labels=(*self._labels, "sleep_state")
        )
        for level, name in enumerate(SLEEP_STATES):
            sleep.add_metric((*self._labels.values(), name), level == self._engine.asleep)
        yield sleep
        yield self._gauge("weights_version", "Of the weights that newcomers get, 0 at start", scheduler.weights.newest)
        yield self._counter("num_forks", "Answers that began with another's blocks", scheduler.num_forks)
        yield from self._drafts()
        yield from self._programs()

    def _drafts(self) -> Iterable[Metric]:
        speculation = self._engine.scheduler.speculation
        counts = speculation.counts if speculation else DraftCounts()
        yield self._counter("spec_decode_num_drafts", "Runs of drafts that were verified", counts.num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Tokens in them", counts.num_tokens)
        accepted = counts.num_accepted
        yield self._counter("spec_decode_num_accepted_tokens", "Of these, accepted", sum(accepted))
        name, text = "spec_decode_num_accepted_tokens_per_pos", "Accepted, by their place in the run"
        yield self._counters(name, text, "position", dict(enumerate(accepted)))

    def _programs(self) -> Iterable[Metric]:
        """Where they came from, what start-up took, in time and memory, and how well their sizes fit."""
        startup = self._startup
        yield self._counter("compilation_cache_hits", "Programs found in the persistent cache", startup.cache_hits())
        yield self._counter("program_loads", "Programs loaded from a bundle", startup.loaded())
        yield self._gauge("weight_bytes", "Of the weights on each device, when awake", startup.weight_bytes)
        yield self._gauge("kv_pool_bytes", "Of the KV pools on each device, when awake", startup.kv_pool_bytes)
        compiled = dict.fromkeys(_COMPILATION_REASONS, 0) | dict(startup.compiled())
        yield self._counters("compilations", "Programs compiled", "reason", compiled)
        late = startup.late()
        yield self._gauge("programs_left", "Programs that are still being made", len(late.left))
        yield self._gauge("programs_failed", "Programs that could not be made in the background", len(late.failed))
        phases = GaugeMetricFamily(
            f"{PREFIX}startup_seconds", "Seconds that a phase of start-up took", labels=(*self._labels, "phase")
        )
        for name, group in groupby(sorted(startup.spans(), key=attrgetter("name")), key=attrgetter("name")):
            phases.add_metric((*self._labels.values(), name), sum(span.seconds for span in group))
        yield phases
        use = self._engine.bucket_use
        yield self._counters("bucket_steps", "Steps by the size of their body in tokens", "bucket", dict(use.steps))
        text = "Tokens computed for no request, by the size of the body"
        yield self._counters("bucket_padding_tokens", text, "bucket", dict(use.padding))

    def _blocks(self, manager: BlockManager) -> Iterable[Metric]:
        """Over all layer groups. Blocks that only the prefix cache knows are free ones."""
        yield self._gauge("kv_blocks", "KV blocks there are", manager.num_blocks)
        yield self._gauge("kv_blocks_used", "KV blocks in use", manager.num_used_blocks)
        cached = sum(pool.num_known for pool in manager.pools)
        yield self._gauge("kv_blocks_cached", "KV blocks of known contents, in use or free", cached)
        shared = sum(pool.num_shared for pool in manager.pools)
        yield self._gauge("kv_blocks_shared", "KV blocks spared by sharing", shared)
        on_host = sum(pool.num_used for pool in manager.host_pools)
        yield self._gauge("kv_host_blocks_used", "KV blocks kept in host memory", on_host)

    def _queue(self, occupancy: Occupancy) -> Iterable[Metric]:
        """By tenant and priority."""
        labels = (*self._labels, "tenant", "priority")
        depth = GaugeMetricFamily(f"{PREFIX}queue_requests", "Requests that wait, by class", labels=labels)
        age = GaugeMetricFamily(f"{PREFIX}queue_oldest_seconds", "How long the oldest of them waits", labels=labels)
        now = time.monotonic()
        for (tenant, priority), (count, oldest) in (occupancy.waiting or {("", 0): (0, now)}).items():
            values = (*self._labels.values(), tenant, str(priority))
            depth.add_metric(values, count)
            age.add_metric(values, now - oldest)
        yield depth
        yield age

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _counters(self, name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
        """By one more label."""
        family = CounterMetricFamily(PREFIX + name, text, labels=(*self._labels, label))
        for key, value in values.items():
            family.add_metric((*self._labels.values(), str(key)), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family
