"""When to come back: the time that as many requests take to end, within bounds."""

import pytest

from xlaserve.engine.completion_rate import CompletionRate


@pytest.mark.parametrize(("num_ends", "expected"), [(1, 1), (2, 1), (3, 2), (10, 5), (1000, 60)])
def test_two_ends_a_second(num_ends, expected):
    rate = CompletionRate(0.0)
    for number in range(100):
        rate.observe_end(number / 2)
    assert rate.seconds_until(num_ends, 99 / 2) == expected


def test_without_any_end_the_time_worked_so_far_is_the_guess():
    rate = CompletionRate(100.0)
    assert [rate.seconds_until(1, now) for now in (100.0, 107.5, 500.0)] == [1, 8, 60]


def test_a_rest_does_not_count_as_slow_work():
    rate = CompletionRate(0.0)
    rate.observe_end(1.0)
    rate.restart(3600.0)
    rate.observe_end(3604.0)
    assert rate.seconds_until(2, 3604.0) == 8
