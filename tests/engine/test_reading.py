"""Prompts that are scored or pooled, over the toy runner: what is computed, and when, beside what."""

import time

import numpy as np
import pytest

from tests.engine.test_llm_engine import (
    BOTH_CLOCKS,
    Collected,
    assert_read,
    check_idle,
    expected_output,
    make_request,
    run,
    with_forks,
)
from tests.integrity import check_scheduler
from tests.toy_engine import make_engine
from xlaserve.core.reading import PromptScores


def scoring(length: int, max_tokens: int = 0, name: str = "r", **params):
    return make_request(range(length), max_tokens, name=name, prompt_logprobs=3, **params)


def reading(length: int, what: str, name: str = "r"):
    return scoring(length, name=name) if what == "scores" else make_request(range(length), 0, name=name, pooling=what)


READ = pytest.mark.parametrize("what", ["scores", "mean", "last", "cls"])


@READ
@BOTH_CLOCKS
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_report_21_around_block_borders_and_again_with_the_prefix_cached(what, chunk, async_scheduling):
    """Blocks of 4. What was read before is computed again, never left out because its blocks are known."""
    engine, runner = make_engine(max_num_batched_tokens=chunk, async_scheduling=async_scheduling)
    for length in (1, 3, 4, 5, 9, 9, 13, 6):
        request = reading(length, what)
        found = run(engine, request)
        assert_read(found.read["r"], request)
        assert found.token_ids["r"] == []
        assert found.last["r"].finish_reason == "length"
        assert request.num_cached_tokens == 0 or what == "last"
        check_idle(engine, runner)
    assert runner.calls["sample"] == runner.calls["body"]


def test_what_is_read_is_published_and_only_the_last_position_uses_it():
    engine, runner = make_engine()
    run(engine, scoring(13))
    plain, pooled, again = make_request(range(13), 2, name="plain"), reading(13, "last"), scoring(13, name="again")
    found = run(engine, plain, pooled, again)
    assert (plain.num_cached_tokens, pooled.num_cached_tokens, again.num_cached_tokens) == (12, 12, 0)
    assert found.token_ids["plain"] == expected_output(plain)
    assert_read(found.read["r"], pooled)
    assert_read(found.read["again"], again)
    check_idle(engine, runner)


@pytest.mark.parametrize("max_outputs", [4, 7])
def test_a_step_returns_no_more_hidden_states_than_it_has_room_for(max_outputs):
    """The toy runner notes any step with more."""
    engine, runner = make_engine(max_outputs=max_outputs, max_num_batched_tokens=16)
    alone = scoring(40)
    run(engine, alone)
    assert runner.calls["body"] == -(-39 // max_outputs)
    requests = [scoring(30, 3, name=f"scored {i}") for i in range(3)] + [reading(30, "mean", name="mean")]
    found = run(engine, *requests)
    for request in requests:
        assert_read(found.read[request.request_id], request)
        assert found.token_ids[request.request_id] == expected_output(request)
    check_idle(engine, runner)


def test_a_long_prompt_that_is_read_holds_up_neither_streams_nor_newcomers():
    engine, runner = make_engine(max_num_seqs=4, async_scheduling=False)
    stream, long = make_request([5], 60, name="stream"), scoring(200, name="long")
    collected = Collected()
    engine.add_request(stream)
    engine.add_request(long)
    for number in range(20):
        newcomer = make_request([7, number], 1, name=f"newcomer {number}")
        engine.add_request(newcomer)
        outputs = engine.step()
        collected.add(outputs)
        assert {"stream", newcomer.request_id} <= {output.request_id for output in outputs}
    assert "long" not in collected.last
    while engine.has_work:
        collected.add(engine.step())
    assert_read(collected.read["long"], long)
    check_idle(engine, runner)


@BOTH_CLOCKS
def test_the_answers_to_one_prompt_share_its_scores_which_are_computed_once(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, max_num_batched_tokens=5)
    scored: list[int] = []
    execute = runner.execute
    runner.execute = lambda command: (scored.extend(getattr(command, "next_ids", ())), execute(command))[1]
    requests = with_forks(scoring(11, 3, temperature=1.0), 3)
    found = run(engine, requests[0])
    for request in requests:
        assert_read(found.read[request.request_id], request)
        assert found.token_ids[request.request_id] == expected_output(request)
    assert scored == list(range(1, 11))
    check_idle(engine, runner)


@pytest.mark.parametrize("steps", range(6))
def test_answers_go_on_reading_where_an_aborted_one_has_ended(steps):
    engine, runner = make_engine(max_num_batched_tokens=5)
    first, *others = with_forks(scoring(21, 2, temperature=1.0), 3)
    collected = Collected()
    engine.add_request(first)
    for _ in range(steps):
        collected.add(engine.step())
    engine.finish_request(first, "abort")
    while engine.has_work:
        collected.add(engine.step())
        check_scheduler(engine.scheduler)
    for request in others:
        assert_read(collected.read[request.request_id], request)
        assert collected.token_ids[request.request_id] == expected_output(request)
    check_idle(engine, runner)


def test_preempted_while_it_is_read():
    """Pool of 11 blocks: both grow to 7."""
    engine, runner = make_engine((12,), block_size=4, max_num_batched_tokens=8)
    older, younger = make_request(range(10), 18, name="older"), scoring(20, 6, name="younger")
    found = run(engine, older, younger)
    assert engine.scheduler.num_preemptions > 0
    assert_read(found.read["younger"], younger)
    assert found.token_ids["younger"] == expected_output(younger)
    check_idle(engine, runner)


@READ
@pytest.mark.parametrize("where", ["body", "promptlogprobs", "pool", "sample", "result"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_step_that_fails_is_read_again_and_nothing_twice(what, where, number):
    engine, runner = make_engine(max_num_batched_tokens=5, fail_at={(where, number)})
    request = reading(13, what)
    assert_read(run(engine, request).read["r"], request)
    check_idle(engine, runner)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_prompt_whose_logits_are_not_finite_ends_its_request_alone(max_tokens):
    engine, runner = make_engine(not_ok=lambda context: context == [0, 1, 2])
    bad, good = scoring(6, max_tokens, name="bad"), make_request(range(50, 56), 3, name="good", prompt_logprobs=1)
    found = run(engine, bad, good)
    assert found.last["bad"].finish_reason == "error"
    assert "finite" in (found.last["bad"].error or "")
    assert found.token_ids["good"] == expected_output(good)
    assert_read(found.read["good"], good)
    check_idle(engine, runner)


def test_a_pool_that_is_just_full_of_the_prompt_will_do():
    engine, runner = make_engine((5,), block_size=4)
    request = scoring(16)
    assert_read(run(engine, request).read["r"], request)
    check_idle(engine, runner)


def test_a_deadline_before_all_is_read_is_a_timeout_and_no_answer():
    engine, runner = make_engine(async_scheduling=False)
    request = scoring(40, 5)
    request.deadline = time.monotonic() + 1000
    engine.add_request(request)
    engine.step()
    (output,) = engine.expire(request.deadline + 1)
    assert (output.finish_reason, output.read) == ("timeout", None)
    check_idle(engine, runner)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_deadline_after_all_is_read_loses_nothing_of_it(num_tokens):
    """What was read comes with the first token, or with the end that comes before it, and once only."""
    engine, runner = make_engine(async_scheduling=False, max_num_batched_tokens=4)
    request = scoring(17, 5)  # the last token, from which the first is sampled, has a step of its own
    request.deadline = time.monotonic() + 1000
    engine.add_request(request)
    assert request.reading is not None
    while not request.reading.is_complete:
        assert engine.step() == []
    outputs = engine.step() if num_tokens else []
    assert [output.token_ids for output in outputs] == [(expected_output(request)[0],)] * num_tokens
    outputs += engine.expire(request.deadline + 1)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("length", "timeout")
    (read,) = [output.read for output in outputs if output.read is not None]
    assert_read(read, request)
    check_idle(engine, runner)


def test_a_prompt_that_is_only_computed_ends_without_a_token():
    engine, runner = make_engine()
    found = run(engine, make_request(range(20), 0))
    assert found.last["r"].finish_reason == "length"
    assert (found.token_ids["r"], found.read) == ([], {})
    assert runner.calls["promptlogprobs"] == runner.calls["pool"] == 0
    check_idle(engine, runner)


def test_a_prompt_of_one_token_has_nothing_to_be_scored():
    engine, _ = make_engine()
    scores = run(engine, scoring(1, 1)).read["r"]
    assert isinstance(scores, PromptScores)
    assert (scores.logprobs.shape, scores.top_ids.shape) == ((0,), (0, 3))
    assert (scores.logprobs.dtype, scores.ranks.dtype) == (np.float32, np.int32)
