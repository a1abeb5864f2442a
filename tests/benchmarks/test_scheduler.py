"""The scheduler's benchmarks run, and measure what they say."""

from benchmarks import scheduler_soak, scheduler_step


def test_steps_are_timed():
    found = scheduler_step.measure(num_running=20, num_waiting=50, num_steps=20)
    assert set(found) == {"schedule", "update"}
    for figures in found.values():
        assert 0 < figures["wall_median_ms"] <= figures["wall_p99_ms"]
        assert 0 < figures["cpu_median_ms"] <= figures["cpu_p99_ms"]


def test_the_soak_tells_memory_after_each_fifth():
    found = scheduler_soak.measure(num_requests=50, output_tokens=3)
    assert found["output_tokens"] == 150
    resident = found["resident_mib"]
    assert list(resident)[-1] == 50
    assert all(10 < mib < 10_000 for mib in resident.values())
