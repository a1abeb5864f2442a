"""What a benchmark sends: lengths, prefixes and arrivals."""

from itertools import pairwise
from math import inf
from statistics import fmean, pstdev

import pytest

from xlaserve.bench.workload import Drawn, Job, arriving, read_custom, read_lengths, read_sharegpt
from xlaserve.errors import ConfigError


def words(job: Job) -> list[str]:
    return job.prompt.split()


def test_fixed_lengths_behind_one_prefix():
    jobs = list(Drawn(0).fixed(20, 30, 7, prefix_len=12))
    assert {(len(words(job)), job.output_tokens) for job in jobs} == {(42, 7)}
    assert len({tuple(words(job)[:12]) for job in jobs}) == 1
    assert len({job.prompt for job in jobs}) == 20


def test_lengths_within_a_ratio():
    jobs = list(Drawn(1).fixed(500, 100, 10, range_ratio=0.5))
    assert (min(len(words(job)) for job in jobs), max(len(words(job)) for job in jobs)) == (50, 150)
    assert {job.output_tokens for job in jobs} == set(range(5, 16))


def test_a_seed_is_a_load():
    assert list(Drawn(3).fixed(5, 10, 4)) == list(Drawn(3).fixed(5, 10, 4))
    assert list(Drawn(3).fixed(5, 10, 4)) != list(Drawn(4).fixed(5, 10, 4))


def test_prefixes_are_repeated_evenly():
    jobs = list(Drawn(0).prefix_repetition(11, 8, 3, 4, 5))
    beginnings = [tuple(words(job)[:8]) for job in jobs]
    assert sorted(beginnings.count(each) for each in set(beginnings)) == [2, 3, 3, 3]
    assert {len(words(job)) for job in jobs} == {11}
    assert len({job.prompt for job in jobs}) == 11


def test_chats_keep_within_the_greatest_length():
    jobs = list(Drawn(0).chats(2000, 300))
    assert max(len(words(job)) + job.output_tokens for job in jobs) == 300
    assert min(job.output_tokens for job in jobs) >= 1
    unlimited = list(Drawn(0).chats(4000, 10**6))
    assert fmean(len(words(job)) for job in unlimited) == pytest.approx(100, rel=0.1)
    assert fmean(job.output_tokens for job in unlimited) == pytest.approx(200, rel=0.1)


def test_a_trace_says_what_is_shared_and_when(tmp_path):
    file = tmp_path / "trace.jsonl"
    lines = [
        '{"prompt_tokens": 9, "output_tokens": 2, "arrival": 1.5, "prefix": "a", "prefix_tokens": 6}',
        '{"prompt_tokens": 8, "output_tokens": 3, "prefix": "a", "prefix_tokens": 6}',
        '{"prompt_tokens": 7, "output_tokens": 4, "arrival": 0.5, "prefix": "b", "prefix_tokens": 6}',
    ]
    file.write_text("\n".join(lines))
    jobs = read_lengths(file, Drawn(0))
    assert [(len(words(job)), job.output_tokens, job.arrival) for job in jobs] == [
        (8, 3, 0.0),
        (7, 4, 0.5),
        (9, 2, 1.5),
    ]
    first, other, last = (words(job)[:6] for job in jobs)
    assert first == last != other


def test_a_custom_file(tmp_path):
    file = tmp_path / "custom.jsonl"
    file.write_text('{"prompt": "one two", "other": 1}\n\n{"prompt": "three", "output_tokens": 5}\n')
    assert read_custom(file, 9) == [Job("one two", 9), Job("three", 5)]


def test_a_sharegpt_file(tmp_path):
    file = tmp_path / "sharegpt.json"
    file.write_text(
        '[{"conversations": [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "it is so"}]},'
        '{"conversations": [{"from": "human", "value": "alone"}]}, {"id": 3}]'
    )
    assert read_sharegpt(file, None) == [Job("why?", 3)]
    assert read_sharegpt(file, 8) == [Job("why?", 8)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no request in it"),
        ("{", "line 1"),
        ('{"prompt": ""}', "line 1: prompt"),
        ('{"prompt": "a"}\n{"text": "b"}', "line 2: prompt"),
        ('{"prompt": "a", "output_tokens": 0}', "line 1: output_tokens"),
    ],
)
def test_what_is_wrong_with_a_custom_file_is_named(tmp_path, text, told):
    file = tmp_path / "custom.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_custom(file, 1)


@pytest.mark.parametrize("text", ["{}", "[1]", "no", '[{"conversations": []}]'])
def test_what_is_no_sharegpt_is_refused(tmp_path, text):
    file = tmp_path / "sharegpt.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=str(file)):
        read_sharegpt(file, None)


def test_no_file(tmp_path):
    for read in (lambda path: read_custom(path, 1), lambda path: read_sharegpt(path, 1)):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(tmp_path / "none")


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness):
    jobs = arriving([Job("a", 1)] * 20_000, 8.0, burstiness, 0)
    gaps = [after.arrival - before.arrival for before, after in pairwise(jobs)]
    assert jobs[0].arrival == 0
    assert fmean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)  # of a gamma distribution


def test_all_at_once():
    assert [job.arrival for job in arriving([Job("a", 1, 3.0)] * 3, inf, 1.0, 0)] == [0, 0, 0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (1, 0), (1, inf), (float("nan"), 1)])
def test_impossible_arrivals(rate, burstiness):
    with pytest.raises(ConfigError, match="above 0"):
        arriving([Job("a", 1)], rate, burstiness, 0)


def test_an_impossible_ratio():
    with pytest.raises(ConfigError, match="below 1"):
        list(Drawn(0).fixed(1, 1, 1, range_ratio=1.0))
