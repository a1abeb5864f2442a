"""What a simulation is given: random requests, recorded ones, and costs."""

import json
from dataclasses import replace

import pytest

from xlaserve.engine.simulation.costs import CostModel, fit_costs
from xlaserve.engine.simulation.trace import Lengths, TraceRequest, Workload, read_trace
from xlaserve.errors import ConfigError

SMALL = Workload(10, Lengths(6), Lengths(6), max_tokens=16)


def test_random_lengths_have_the_means_asked_for():
    workload = Workload(4000, Lengths(100, 1.0), Lengths(200, 0.8), max_tokens=4096, rate=10, prefix_tokens=50)
    requests = list(workload.requests())
    assert requests == list(workload.requests())
    assert sum(request.prompt_tokens for request in requests) / 4000 == pytest.approx(150, rel=0.05)
    assert sum(request.output_tokens for request in requests) / 4000 == pytest.approx(200, rel=0.05)
    assert requests[-1].arrival == pytest.approx(400, rel=0.05)
    assert all(request.prompt_tokens + request.output_tokens <= 4096 for request in requests)
    assert {request.prefix for request in requests} == {"prefix 0"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rate": 0.0}, "rate is 0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"prefix_tokens": 15}, "leaves no room"),
        ({"tenants": {"a": 0.0}}, "'a'"),
        ({"tenants": {}}, "tenant"),
    ],
    ids=str,
)
def test_a_wrong_workload_is_told(change, told):
    with pytest.raises(ConfigError, match=told):
        replace(SMALL, **change)


@pytest.mark.parametrize(("mean", "sigma"), [(0, 1), (float("inf"), 1), (5, -1), (5, float("nan"))])
def test_wrong_lengths_are_told(mean, sigma):
    with pytest.raises(ConfigError, match="mean" if sigma == 1 else "sigma"):
        Lengths(mean, sigma)


def test_a_trace_is_read_by_arrival(tmp_path):
    lines = [
        {"arrival": 2, "prompt_tokens": 9, "output_tokens": 1, "prefix": "p", "prefix_tokens": 8, "tenant": "t"},
        {"arrival": 0.5, "prompt_tokens": 3, "output_tokens": 4},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert read_trace(file) == [
        TraceRequest(arrival=0.5, prompt_tokens=3, output_tokens=4),
        TraceRequest(arrival=2.0, prompt_tokens=9, output_tokens=1, prefix="p", prefix_tokens=8, tenant="t"),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"output_tokens": 1}', "prompt_tokens: "),
        ('{"prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens is '0'"),
        ('{"prompt_tokens": "4", "output_tokens": 1}', "prompt_tokens is '4'"),
        ('{"prompt_tokens": true, "output_tokens": 1}', "prompt_tokens is 'True'"),
        ('{"prompt_tokens": 4, "output_tokens": 1, "arrival": NaN}', "arrival"),
        ('{"prompt_tokens": 4, "output_tokens": 1, "arrival": -1}', "arrival is '-1'"),
        ('{"prompt_tokens": 4, "output_tokens": 1, "arival": 1}', "unknown key 'arival'"),
        ('{"prompt_tokens": 4, "output_tokens": 1, "prefix": "a", "prefix_tokens": 5}', "prefix_tokens is 5"),
        ('{"prompt_tokens": 4, "output_tokens": 1, "prefix": "a"}', "belong together"),
        ("[1]", ""),
        ("nonsense", "JSON"),
    ],
    ids=str,
)
def test_a_wrong_line_of_a_trace_is_told(tmp_path, line, told):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"prompt_tokens": 4, "output_tokens": 1}\n' + line)
    with pytest.raises(ConfigError) as error:
        read_trace(file)
    assert f"{file}, line 2: " in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_trace_that_is_none_is_told(tmp_path, content):
    file = tmp_path / "trace.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"trace\.jsonl"):
        read_trace(file)


def test_costs_are_fitted(tmp_path):
    costs = CostModel(step_ms=3, token_us=20, context_ns=7)
    sizes = [(64, 1000), (64, 90_000), (256, 4000), (2048, 30_000), (2048, 2048)]
    steps = [{"padded_tokens": t, "context_tokens": c, "ms": 1000 * costs.seconds(t, c)} for t, c in sizes]
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(steps))
    fitted = fit_costs(file)
    assert vars(fitted) == pytest.approx(vars(costs))


STEP = {"padded_tokens": 1, "context_tokens": 1, "ms": 1}


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (STEP, "a list"),
        ([STEP, {"ms": 1}], "step 1: expected the keys"),
        ([STEP | {"ms": "1"}], "step 0: ms is '1'"),
        ([STEP | {"ms": -1}], "step 0: ms is '-1'"),
        ([], "tell the costs apart"),
        ([STEP] * 5, "tell the costs apart"),
        ([STEP | {"ms": 9}, STEP | {"padded_tokens": 9}, STEP | {"context_tokens": 5}], "negative cost"),
    ],
    ids=str,
)
def test_wrong_measurements_are_told(tmp_path, steps, told):
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(steps))
    with pytest.raises(ConfigError, match=told) as error:
        fit_costs(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("costs", [{"step_ms": -1}, {"token_us": float("nan")}, {"step_ms": 0, "token_us": 0}])
def test_wrong_costs_are_told(costs):
    with pytest.raises(ConfigError, match=next(iter(costs))):
        CostModel(**costs)
