"""The simulated device: its times and its memory against figures worked out by hand, over the real scheduler."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.integrity import check_scheduler
from xlaserve.config import load_config
from xlaserve.core.step import SchedulerOutput
from xlaserve.engine.simulation.costs import CostModel
from xlaserve.engine.simulation.report import make_report
from xlaserve.engine.simulation.simulator import Simulator, Sizes
from xlaserve.engine.simulation.summaries import Curve, Histogram
from xlaserve.engine.simulation.trace import Lengths, TraceRequest, Workload
from xlaserve.errors import ConfigError

# Bodies of 4 and of 8 tokens: 12 and 16 ms.
TINY = Sizes(
    max_model_len=16,
    block_size=4,
    num_blocks=9,
    max_num_seqs=4,
    max_num_batched_tokens=8,
    async_scheduling=False,
    prefix_caching=True,
)
COSTS = CostModel(step_ms=8, token_us=1000, context_ns=0)


def simulate(trace, sizes: Sizes = TINY, costs: CostModel = COSTS) -> Simulator:
    simulator = Simulator(sizes, costs)
    simulator.run(trace)
    return simulator


def milliseconds(histogram: Histogram) -> list[float]:
    """The values, one per distinct one."""
    return [round(1000 * value, 6) for value, _ in histogram.distribution()]


TWO_REQUESTS = [
    TraceRequest(arrival=0, prompt_tokens=4, output_tokens=2),
    TraceRequest(arrival=0.005, prompt_tokens=4, output_tokens=2),
]


def test_two_requests_by_hand():
    """0-12: the first's prompt. 12-28: its second token and the other's prompt. 28-40: the other's second token."""
    simulator = simulate(TWO_REQUESTS)
    measures = simulator.measures
    assert milliseconds(measures.first_token) == [12, 23]
    assert milliseconds(measures.inter_token) == [12, 16]
    assert milliseconds(measures.queue_time) == [0, 7]
    report = make_report(simulator)
    assert report["seconds"] == pytest.approx(0.040)
    assert report["throughput"]["requests_per_s"] == pytest.approx(2 / 0.040)
    assert report["throughput"]["output_tokens_per_s"] == pytest.approx(4 / 0.040)
    assert report["throughput"]["total_tokens_per_s"] == pytest.approx(12 / 0.040)
    assert report["concurrency"]["mean"] == pytest.approx((12 * 1 + 16 * 2 + 12 * 1) / 40)
    assert report["steps"]["padding_waste"] == pytest.approx(1 - 10 / 16)


def test_two_requests_by_hand_with_a_step_ahead():
    """The first's second step is launched before the other arrives, which so starts a step later: at 24."""
    simulator = simulate(TWO_REQUESTS, replace(TINY, async_scheduling=True))
    assert milliseconds(simulator.measures.first_token) == [12, 36 - 5]
    assert milliseconds(simulator.measures.inter_token) == [12]
    assert milliseconds(simulator.measures.queue_time) == [0, 12 - 5]
    assert simulator.clock.now == pytest.approx(0.048)


def test_context_costs_by_hand():
    """One token after the other: contexts of 4, then 5."""
    request = TraceRequest(prompt_tokens=4, output_tokens=2)
    simulator = simulate([request], costs=CostModel(step_ms=1, token_us=0, context_ns=1e6))
    assert milliseconds(simulator.measures.first_token) == [1 + 4]
    assert milliseconds(simulator.measures.inter_token) == [1 + 5]


def test_waste_and_usage_by_hand():
    """Two of eight blocks: for 16 ms 3 of their 8 slots are empty, for 12 ms 2."""
    report = make_report(simulate([TraceRequest(prompt_tokens=5, output_tokens=2)]))
    assert report["memory"]["internal_waste"] == pytest.approx((16 * 3 / 8 + 12 * 2 / 8) / 28)
    assert report["memory"]["usage"] == pytest.approx(2 / 8)


def test_waste_equals_a_count_of_slots():
    """Slots in the tables less slots that a step has written, counted one by one while time passes."""
    simulator = Simulator(TINY, COSTS)
    watched, shares = simulator.measures.passing, []

    def passing(now, seconds, scheduler):
        watched(now, seconds, scheduler)
        slots = {(block, offset) for r in scheduler.running for block in r.block_tables[0] for offset in range(4)}
        written = {
            (request.block_tables[0][position // 4], position % 4)
            for request in scheduler.running
            for position in range(request.num_computed_tokens)
        }
        shares.append((len(slots - written) / len(slots), seconds))

    simulator.measures.passing = passing
    simulator.run(Workload(30, Lengths(6, 0.5), Lengths(6, 0.5), max_tokens=16).requests())
    total = sum(seconds for _, seconds in shares)
    expected = sum(share * seconds for share, seconds in shares) / total
    assert make_report(simulator)["memory"]["internal_waste"] == pytest.approx(expected)
    assert len(shares) > 50


def test_concurrency_against_one_piece_per_request():
    """Eight blocks hold two requests of 16 tokens in one piece, and four of at most 4 tokens in blocks."""
    report = make_report(simulate([TraceRequest(prompt_tokens=2, output_tokens=2)] * 40))
    concurrency = report["concurrency"]
    assert (concurrency["contiguous"], concurrency["max"]) == (2, 4)
    assert concurrency["while_queued"] == pytest.approx(4)
    assert concurrency["times_contiguous"] == pytest.approx(2)


RANDOM = Workload(200, Lengths(6, 0.8), Lengths(6, 0.8), max_tokens=16, rate=60, tenants={"a": 3, "b": 1}, seed=3)


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_nothing_is_lost_in_a_tiny_pool(async_scheduling):
    sizes = replace(TINY, num_blocks=6, async_scheduling=async_scheduling)
    simulator = simulate(RANDOM.requests(), sizes)
    report = make_report(simulator)
    assert report["memory"]["preemptions"] > 0
    assert report["requests"] == {"finished": {"length": 200}, "refused": 0}
    measures, requests = simulator.measures, list(RANDOM.requests())
    assert measures.num_output_tokens == sum(request.output_tokens for request in requests)
    assert measures.num_prompt_tokens == sum(request.prompt_tokens for request in requests)
    assert measures.first_token.count == measures.queue_time.count == 200
    assert measures.inter_token.count == measures.num_output_tokens - 200
    served = sum(tenant.served_tokens for tenant in measures.tenants.values())
    assert served == measures.num_output_tokens + measures.num_prompt_tokens
    check_scheduler(simulator.scheduler)
    assert simulator.scheduler.block_manager.num_free(0) == 5


def test_the_same_seed_gives_the_same_figures():
    again = replace(RANDOM, seed=4)
    first, same, other = (make_report(simulate(workload.requests())) for workload in (RANDOM, RANDOM, again))
    assert first == same
    assert first != other


def prefixed(**fields) -> TraceRequest:
    return TraceRequest(prompt_tokens=11, output_tokens=1, prefix="p", prefix_tokens=8, **fields)


@pytest.mark.parametrize(
    ("second", "prefix_caching", "hits"),
    [
        (prefixed(arrival=1), True, 8),
        (prefixed(arrival=1), False, 0),
        (prefixed(arrival=1, cache_salt="other"), True, 0),
        (TraceRequest(prompt_tokens=11, output_tokens=1, arrival=1), True, 0),
    ],
    ids=["shared", "off", "another salt", "another prompt"],
)
def test_prefix_hits_by_hand(second, prefix_caching, hits):
    """Of two prompts of 11 tokens the second finds two blocks of four, and then takes one step in place of two."""
    simulator = simulate([prefixed(), second], replace(TINY, prefix_caching=prefix_caching))
    assert make_report(simulator)["memory"]["prefix_hit_rate"] == hits / 22
    assert milliseconds(simulator.measures.first_token) == ([12, 28] if hits else [28])


@pytest.mark.parametrize("tenants", [{"": 1}, {"a": 1, "b": 9}])
def test_what_is_kept_does_not_grow_with_the_run(tenants):
    simulator = simulate(replace(RANDOM, num_requests=1500, tenants=tenants).requests())
    measures = simulator.measures
    assert len(measures.curve.points) < 2000 < simulator.runner.commands["Body"]
    assert not measures._requests
    assert not measures._tenant_of
    assert all(len(tenant.queue) < 10 for tenant in measures.tenants.values())


def test_shares_while_all_wait():
    """First come, first served gives each tenant what it sends."""
    workload = replace(RANDOM, num_requests=800, rate=None)
    tenants = make_report(simulate(workload.requests()))["tenants"]
    assert tenants["a"]["share_while_contended"] == pytest.approx(3 / 4, abs=0.06)
    assert sum(tenant["share_while_contended"] for tenant in tenants.values()) == pytest.approx(1)


@pytest.mark.parametrize("weights", [{}, {"a": 1.0, "b": 3.0}])
def test_the_fair_policy_gives_each_tenant_its_weight(weights):
    workload = replace(RANDOM, num_requests=2000, rate=None, tenants={"a": 20, "b": 1})
    tenants = make_report(simulate(workload.requests(), replace(TINY, policy="fair", weights=weights)))["tenants"]
    expected = weights.get("a", 1) / (weights.get("a", 1) + weights.get("b", 1))
    assert tenants["a"]["share_while_contended"] == pytest.approx(expected, rel=0.1)


def test_a_tenant_alone_is_never_contended():
    trace = [TraceRequest(prompt_tokens=4, output_tokens=2, tenant="a", arrival=0)]
    trace += [TraceRequest(prompt_tokens=4, output_tokens=2, tenant="b", arrival=5)]
    shares = [tenant["share_while_contended"] for tenant in make_report(simulate(trace))["tenants"].values()]
    assert shares == [None, None]


def test_lengths_as_the_server_takes_them():
    """An output is cut to what is left of the context; a prompt that leaves nothing is refused."""
    trace = [TraceRequest(prompt_tokens=n, output_tokens=9) for n in (15, 16, 17)]
    simulator = simulate(trace)
    assert (simulator.measures.finished.total(), simulator.num_refused) == (1, 2)
    assert simulator.measures.num_output_tokens == 1


def test_a_scheduler_that_stalls_is_told():
    simulator = Simulator(TINY, COSTS)
    simulator.scheduler.schedule = SchedulerOutput
    with pytest.raises(RuntimeError, match="1 requests wait"):
        simulator.run([TraceRequest(prompt_tokens=4, output_tokens=2)])


def test_prompts_share_their_prefix_and_nothing_else():
    simulator = Simulator(TINY, COSTS)
    shapes = [("a", 6), ("a", 4), ("b", 6), ("", 0)]
    trace = [
        TraceRequest(prompt_tokens=8, output_tokens=1, prefix=name, prefix_tokens=shared) for name, shared in shapes
    ]
    first, shorter, other, own = (simulator._prompts.ids(request) for request in trace)
    assert first[:4] == shorter[:4]
    every = [*first, *shorter[4:], *other, *own]
    assert len(every) == len(set(every)) == 8 + 4 + 8 + 8


def test_sizes_come_from_the_configuration():
    sizes = Sizes.of(load_config(None, []))
    assert (sizes.max_model_len, sizes.contiguous_requests) == (4096, 10)
    settings = ["cache.block_size=8", "cache.num_blocks=33", "scheduler.max_num_seqs=3", "model.max_model_len=512"]
    sizes = Sizes.of(load_config(None, settings))
    assert (sizes.block_size, sizes.num_blocks, sizes.max_num_seqs) == (8, 33, 3)
    assert sizes.max_model_len == 256  # what the pool holds
    with pytest.raises(ConfigError, match=r"cache\.num_blocks"):
        Sizes.of(load_config(None, ["cache.memory=1GiB"]))


def test_percentiles():
    histogram = Histogram()
    assert histogram.percentile(50) == 0
    for value in range(1, 1001):
        histogram.add(float(value), count=2)
    histogram.add(0.0)
    for percent in (1, 50, 90, 99, 100):
        assert histogram.percentile(percent) == pytest.approx(10 * percent, rel=0.01)
    assert histogram.percentile(0) == 0
    assert histogram.maximum == 1000
    assert histogram.mean() == pytest.approx(500.5 * 2000 / 2001)


def test_a_curve_keeps_its_shape_in_bounded_memory():
    curve = Curve()
    for time in range(100_000):
        curve.offer(time, 2 * time)
    assert 900 < len(curve.points) < 2000
    assert all(value == 2 * time for time, value in curve.points)
    times = [time for time, _ in curve.points]
    steps = {later - earlier for earlier, later in pairwise(times)}
    assert (times[0], len(steps)) == (0, 1)


def test_offloads_and_restores_are_counted():
    trace = [TraceRequest(12, 1, arrival=n, prefix="ab"[n % 2], prefix_tokens=12) for n in range(6)]
    memory = make_report(simulate(trace, replace(TINY, num_blocks=5, host_blocks=10)))["memory"]
    assert memory["offloads"] > 0
    assert memory["restores"] > 0
    assert make_report(simulate(trace, replace(TINY, num_blocks=5)))["memory"]["offloads"] == 0
