"""What a scrape says, parsed as Prometheus would."""

import random
import time

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.toy_drafts import eager
from tests.toy_engine import make_engine
from xlaserve.core.request import Request
from xlaserve.engine.engine_loop import EngineLoop
from xlaserve.engine.histogram import Histogram
from xlaserve.engine.metrics import EngineMetrics
from xlaserve.engine.startup import NOT_MEASURED, Span, StartupFacts
from xlaserve.sampling_params import SamplingParams


class Scraped:
    """Sample values by name and labels other than model_name (and bucket bounds)."""

    def __init__(self, metrics: EngineMetrics):
        self.values: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(metrics.render().decode()):
            for sample in family.samples:
                labels = dict(sample.labels)
                if "le" not in labels and not sample.name.endswith("_created"):
                    assert labels.pop("model_name") == "toy"
                    self.values[sample.name.removeprefix("xlaserve:"), "".join(labels.values())] = sample.value

    def __getitem__(self, key) -> float:
        return self.values[key if isinstance(key, tuple) else (key, "")]


@pytest.fixture
def setup():
    engine, runner = make_engine([1 + 20], step_seconds=0.001)
    spans = (
        Span("load the weights", 1.0, 3.5),
        Span("load the programs", 1.0, 2.0),
        Span("load the weights", 4.0, 4.5),
    )
    facts = StartupFacts(
        compiled=lambda: {"start-up": 7},
        cache_hits=lambda: 3,
        loaded=lambda: 16,
        spans=lambda: spans,
        weight_bytes=1000,
        kv_pool_bytes=2000,
    )
    metrics = EngineMetrics("toy", engine, facts)
    loop = EngineLoop(engine, metrics, max_requests=100)
    yield metrics, loop, runner
    runner.released.set()
    loop.shutdown(timeout=0)


def make_request(name: str, prompt_len: int, max_tokens: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return Request(name, [5] * prompt_len, params, prompt_len + max_tokens, stop_ids=frozenset(), seed=0)


def wait_for_end(stream) -> str:
    while not (output := stream.get(timeout=10)).finish_reason:
        pass
    return output.finish_reason


def test_all_series_are_there_before_the_first_request(setup):
    metrics, _, _ = setup
    scraped = Scraped(metrics)
    expected = {
        *(
            "kv_blocks_used",
            "kv_blocks_cached",
            "kv_blocks_shared",
            "kv_internal_waste",
            "num_forks_total",
        ),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "padding_tokens_total"),
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("num_offloads_total", "num_restores_total", "kv_host_blocks_used"),
        *("prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count"),
        *("time_to_first_token_seconds_count", "inter_token_latency_seconds_count"),
        *("request_time_per_output_token_seconds_count", "e2e_request_latency_seconds_count"),
        *("request_queue_time_seconds_count", "request_prompt_tokens_count", "request_generation_tokens_count"),
    }
    assert {name: scraped[name] for name in expected} == dict.fromkeys(expected, 0)
    reasons = ("stop", "length", "abort", "error")
    assert [scraped["request_success_total", reason] for reason in reasons] == [0, 0, 0, 0]
    assert scraped["compilations_total", "start-up"] == 7
    assert scraped["compilations_total", "unexpected"] == 0
    assert scraped["compilation_cache_hits_total"] == 3
    assert scraped["program_loads_total"] == 16
    assert scraped["startup_seconds", "load the weights"] == 3.0
    assert scraped["startup_seconds", "load the programs"] == 1.0
    assert (scraped["weight_bytes"], scraped["kv_pool_bytes"]) == (1000, 2000)


def test_padding_by_the_size_of_the_body(setup):
    metrics, _, runner = setup
    runner.bucket_use.count(8, 5)
    runner.bucket_use.count(8, 8)
    runner.bucket_use.count(64, 40)
    scraped = Scraped(metrics)
    assert (scraped["bucket_steps_total", "8"], scraped["bucket_padding_tokens_total", "8"]) == (2, 3)
    assert (scraped["bucket_steps_total", "64"], scraped["bucket_padding_tokens_total", "64"]) == (1, 24)
    assert scraped["padding_tokens_total"] == 27


def test_counts_add_up_over_finished_aborted_and_preempted_requests(setup):
    metrics, loop, runner = setup
    streams = [loop.submit(make_request(f"ok {n}", 3, 40)) for n in range(4)]  # 11 blocks each: some are preempted
    assert [wait_for_end(stream) for stream in streams] == ["length"] * 4
    assert wait_for_end(loop.submit(make_request("one token", 2, 1))) == "length"

    runner.released.clear()
    other = loop.submit(make_request("other", 2, 5))
    while loop.seconds_since_progress() < 0.05:  # until the thread waits for the device
        time.sleep(0.01)
    aborted = loop.submit(make_request("aborted before its first step", 2, 9))
    loop.abort(aborted)
    runner.released.set()
    assert (wait_for_end(aborted), wait_for_end(other)) == ("abort", "length")

    scraped = Scraped(metrics)
    assert scraped["request_success_total", "length"] == 6
    assert scraped["request_success_total", "abort"] == 1
    assert scraped["request_success_total", "stop"] == scraped["request_success_total", "error"] == 0
    assert scraped["e2e_request_latency_seconds_count"] == 7
    assert scraped["time_to_first_token_seconds_count"] == scraped["request_queue_time_seconds_count"] == 6
    assert scraped["inter_token_latency_seconds_count"] == 4 * 39 + 4
    assert scraped["request_time_per_output_token_seconds_count"] == 5
    assert scraped["generation_tokens_total"] == scraped["request_generation_tokens_sum"] == 4 * 40 + 1 + 5
    assert scraped["prompt_tokens_total"] == 4 * 3 + 2 + 2
    assert scraped["num_preemptions_total"] > 0
    assert scraped["iteration_tokens_total_sum"] >= 4 * 39 + 4  # all but the last token and what prompts share
    assert scraped["prefix_cache_queries_total"] == 4 * 3 + 2 + 2
    assert scraped["num_requests_running"] == scraped["num_requests_waiting"] == scraped["kv_cache_usage_perc"] == 0


def test_usage_is_a_share_while_requests_run(setup):
    metrics, loop, runner = setup
    stream = loop.submit(make_request("a", 10, 30))
    assert stream.get(timeout=5)
    runner.released.clear()
    scraped = Scraped(metrics)
    assert 0 < scraped["kv_cache_usage_perc"] <= 1
    assert scraped["num_requests_running"] == 1
    runner.released.set()
    wait_for_end(stream)


def test_queue_by_class_and_what_the_pool_holds():
    engine, _ = make_engine([1 + 20])
    metrics = EngineMetrics("toy", engine, StartupFacts())
    for number in range(7):  # of which some wait for blocks
        request = make_request(str(number), 9, 20)
        request.tenant, request.priority = "a" if number > 3 else "", number % 2
        engine.add_request(request)
    for _ in range(3):
        engine.step()
    metrics.observe_step(0)
    waiting = len(engine.scheduler.waiting)
    assert waiting > 2
    scraped = Scraped(metrics)
    assert scraped["queue_requests", "0a"] + scraped["queue_requests", "1a"] == waiting
    assert 0 < scraped["queue_oldest_seconds", "0a"] < 60
    tables = [(len(request.block_tables[0]), request.num_computed_tokens) for request in engine.scheduler.running]
    used = 20 - engine.scheduler.block_manager.num_free(0)
    assert scraped["kv_blocks_used"] == used
    assert scraped["kv_internal_waste"] == pytest.approx(sum(n * 4 - tokens for n, tokens in tables) / (used * 4))
    while engine.has_work:
        engine.step()
    scraped = Scraped(metrics)
    assert ("queue_requests", "0a") not in scraped.values
    assert (scraped["queue_requests", "0"], scraped["kv_internal_waste"], scraped["kv_cache_usage_perc"]) == (0, 0, 0)
    assert scraped["kv_blocks"] == 20
    assert scraped["kv_blocks_cached"] > 0


def test_the_histogram_says_what_prometheus_own_does():
    buckets, rng = (0.001, 0.01, 0.1, 1), random.Random(0)
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    reference = prometheus_client.Histogram("seconds", "Some", ("name",), buckets=buckets, registry=theirs)
    subject = Histogram("seconds", "Some", {"name": "toy"}, buckets)
    ours.register(subject)
    for value in [*buckets, 0.0, 2.0, *(10 ** rng.uniform(-4, 1) for _ in range(100))]:
        reference.labels(name="toy").observe(value)
        subject.observe(value)
    lines = generate_latest(theirs).decode().splitlines()
    created = [line for line in lines if "created" in line]  # when the process began to count
    assert generate_latest(ours).decode().splitlines() == [line for line in lines if line not in created]


def test_drafts_are_counted_by_vllms_names():
    engine, _ = make_engine(speculation=eager(0.8, num_tokens=3), max_outputs=64, max_num_batched_tokens=64)
    metrics = EngineMetrics("toy", engine, NOT_MEASURED)
    found = Scraped(metrics)
    names = [f"spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")]
    places = [("spec_decode_num_accepted_tokens_per_pos_total", place) for place in "012"]
    assert [found[name] for name in [*names, *places]] == [0] * 6
    engine.add_request(make_request("one", 3, 30))
    while engine.has_work:
        engine.step()
    found = Scraped(metrics)
    drafts, tokens, accepted = (found[name] for name in names)
    assert drafts < accepted < tokens <= 3 * drafts
    first, second, third = (found[place] for place in places)
    assert drafts > first > second > third > 0
    assert first + second + third == accepted
