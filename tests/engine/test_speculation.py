"""The engine with drafts over the toy runner: every request gives what it gives without them, in fewer steps."""

import pytest

from tests.engine.test_constraints import SumRule, ruled, ruled_output
from tests.engine.test_llm_engine import (
    BOTH_CLOCKS,
    VOCAB,
    Collected,
    check_idle,
    engine_outputs,
    expected_output,
    make_request,
    run,
    with_forks,
)
from tests.integrity import check_scheduler
from tests.toy_drafts import FreeCosts, counted, eager
from tests.toy_engine import make_engine
from tests.toy_runner import toy_output
from xlaserve.core.ngram import NgramProposer
from xlaserve.core.outputs import EngineOutput
from xlaserve.core.speculation import Speculation

ROOMY = {"max_outputs": 64, "max_num_batched_tokens": 64}


@BOTH_CLOCKS
@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_outputs_and_logprobs_are_those_without(share, async_scheduling):
    collected = {}
    for speculation in (None, eager(share)):
        engine, runner = make_engine(async_scheduling=async_scheduling, speculation=speculation, **ROOMY)
        requests = [
            make_request([i, i], 20, name=str(i), logprobs=2, temperature=float(i % 2), seed=i, presence_penalty=i / 2)
            for i in range(4)
        ]
        collected[speculation is None] = run(engine, *requests)
        check_idle(engine, runner)
        assert [each.output_ids for each in requests] == [expected_output(each) for each in requests]
    assert collected[True].token_ids == collected[False].token_ids
    assert collected[True].logprobs == collected[False].logprobs
    num_tokens, num_accepted = counted(speculation)
    assert num_tokens > 20
    assert (num_accepted > 0) == (share > 0)
    assert (num_accepted < num_tokens) == (share < 1)


@BOTH_CLOCKS
def test_right_drafts_spare_steps(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, speculation=eager(1.0), **ROOMY)
    run(engine, make_request([1, 2, 3], 40))
    assert runner.calls["body"] < 20


@BOTH_CLOCKS
@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_report_52_exactly_max_tokens(max_tokens, async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, speculation=eager(1.0), **ROOMY)
    collected = run(engine, make_request([1, 2], max_tokens, logprobs=1))
    assert collected.token_ids["r"] == toy_output([1, 2], max_tokens, vocab_size=VOCAB)
    assert len(collected.logprobs["r"]) == max_tokens
    assert collected.last["r"].finish_reason == "length"
    check_idle(engine, runner)


@pytest.mark.parametrize("place", range(8))
def test_report_52_a_stop_among_accepted_drafts_cuts_there(place):
    """What was accepted after it is never given."""
    stop = toy_output([5], 8, vocab_size=VOCAB)[place]
    engine, runner = make_engine(speculation=eager(1.0), **ROOMY)
    collected = run(engine, make_request([5], 30, stop_ids={stop}, logprobs=0))
    assert collected.token_ids["r"] == toy_output([5], place + 1, vocab_size=VOCAB)
    assert len(collected.logprobs["r"]) == place + 1
    assert (collected.last["r"].finish_reason, collected.last["r"].stop_reason) == ("stop", None)
    check_idle(engine, runner)


def test_tokens_of_a_step_come_together_and_in_order():
    engine, _ = make_engine(speculation=eager(1.0), **ROOMY)
    engine.add_request(make_request([1], 30))
    outputs: list[EngineOutput] = list(engine_outputs(engine))
    assert [token for output in outputs for token in output.token_ids] == toy_output([1], 30, vocab_size=VOCAB)
    assert max(len(output.token_ids) for output in outputs) == 5
    assert outputs[0].token_ids == (toy_output([1], 1, vocab_size=VOCAB)[0],), "the first token waits for nothing"


@BOTH_CLOCKS
@pytest.mark.parametrize("rule", [{}, {"free_until": 9}, {"modulus": 2, "rest": 0}], ids=str)
def test_each_draft_keeps_to_the_requests_constraint(rule, async_scheduling):
    """The drafts are those of a free request: most are refused, some must be accepted."""
    speculation = eager(1.0)
    engine, runner = make_engine(async_scheduling=async_scheduling, speculation=speculation, **ROOMY)
    requests = [ruled(make_request([i], 24, name=str(i), temperature=1.0, seed=i), **rule) for i in range(3)]
    free = make_request([1, 2], 24, name="free")
    collected = run(engine, free, *requests)
    for request in requests:
        assert collected.token_ids[request.request_id] == ruled_output(request, SumRule(**rule))
        assert request.constraint.seen == request.output_ids
    assert collected.token_ids["free"] == expected_output(free)
    assert counted(speculation)[1] > 0
    check_idle(engine, runner)


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_constraint_that_fails_among_drafts_fails_at_its_token(fails_at):
    engine, runner = make_engine(speculation=eager(1.0), **ROOMY)
    request = ruled(make_request([5], 20), free_until=30, fails_at=fails_at)
    collected = run(engine, request)
    assert collected.token_ids["r"] == toy_output([5], fails_at, vocab_size=VOCAB)
    assert (collected.last["r"].finish_reason, collected.last["r"].error) == ("error", "It cannot go on.")
    check_idle(engine, runner)


@pytest.mark.parametrize("length", range(2, 9))
def test_a_row_that_is_not_finite_among_drafts_ends_its_request_there(length):
    engine, runner = make_engine(
        speculation=eager(1.0), not_ok=lambda context: context[0] == 13 and len(context) == length, **ROOMY
    )
    bad, good = make_request([13], 12, name="bad"), make_request([14], 12, name="good")
    collected = run(engine, bad, good)
    assert collected.token_ids["bad"] == expected_output(bad)[: length - 1]
    assert collected.last["bad"].finish_reason == "error"
    assert collected.token_ids["good"] == expected_output(good)
    check_idle(engine, runner)


@pytest.mark.parametrize("num_blocks", range(5, 12))
def test_drafts_preempt_nobody(num_blocks):
    """Wrong ones, so that both ways take as many steps: only what is given needs blocks."""
    preemptions = []
    for speculation in (None, eager(0.0)):
        engine, runner = make_engine([1 + num_blocks], async_scheduling=False, speculation=speculation, **ROOMY)
        requests = [make_request([i] * 3, tokens, name=str(i)) for i, tokens in enumerate((17, 6, 9))]
        collected = run(engine, *requests)
        assert [collected.token_ids[each.request_id] for each in requests] == list(map(expected_output, requests))
        preemptions.append(engine.scheduler.num_preemptions)
        check_idle(engine, runner)
    assert preemptions[0] == preemptions[1]


def test_preempted_with_drafts_in_flight_nothing_is_lost_or_given_twice():
    """The two oldest have none, and so take blocks while the others' drafts are under way."""
    engine, runner = make_engine([1 + 12], speculation=eager(0.8, without="01"), prefix_caching=False, **ROOMY)
    requests = [make_request([i, i], 30, name=str(i), temperature=1.0, seed=i, presence_penalty=1) for i in range(4)]
    collected, in_flight = Collected(), 0
    for request in requests:
        engine.add_request(request)
    while engine.has_work:
        before = {each for each in requests if each.num_drafts}
        collected.add(engine.step())
        check_scheduler(engine.scheduler)
        in_flight += sum(each.row < 0 and not each.is_finished for each in before)
    assert [collected.token_ids[each.request_id] for each in requests] == list(map(expected_output, requests))
    assert engine.scheduler.num_preemptions > 0
    assert in_flight > 0
    check_idle(engine, runner)


def test_blocks_of_accepted_tokens_only_are_shared():
    """A second request finds just what the first one's tokens are, not what was drafted."""
    engine, runner = make_engine(speculation=eager(0.5), **ROOMY)
    first = make_request(range(10), 20, name="first")
    run(engine, first)
    second = make_request([*range(10), *first.output_ids, 7], 20, name="second")
    assert run(engine, second).token_ids["second"] == expected_output(second)
    assert second.num_cached_tokens >= 28
    check_idle(engine, runner)


@BOTH_CLOCKS
def test_forks_have_drafts_of_their_own(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, speculation=eager(0.8), **ROOMY)
    answers = with_forks(make_request([1, 2, 3, 4, 5], 20, temperature=1.0, seed=4), 3)
    collected = run(engine, answers[0])
    assert [collected.token_ids[each.request_id] for each in answers] == list(map(expected_output, answers))
    check_idle(engine, runner)


def test_who_has_no_drafts_stays_a_step_ahead_beside_those_who_have():
    """The host launches its next step before the last one has come back, whatever others wait for."""
    speculation = eager(1.0, without=("plain",))
    engine, runner = make_engine(speculation=speculation, **ROOMY)
    plain, other = make_request([3], 40, name="plain"), make_request([4], 40, name="other")
    engine.add_request(plain)
    engine.add_request(other)
    steps = 0
    while not plain.is_finished:
        engine.step()
        steps += 1
    assert steps <= 42, "a token a step"
    collected_plain, collected_other = plain.output_ids, other.output_ids
    list(engine_outputs(engine))
    assert collected_plain == expected_output(plain)
    assert collected_other == expected_output(other)[: len(collected_other)]
    assert counted(speculation)[1] > 20
    check_idle(engine, runner)


def test_prompt_lookup_over_a_text_that_repeats_itself():
    engine, runner = make_engine(
        next_token=lambda context: context[-3] if len(context) < 40 else (7 * len(context)) % VOCAB,
        speculation=Speculation(NgramProposer(4, 2, 3), FreeCosts((4, 8, 16, 32)), 4),
        **ROOMY,
    )
    request = make_request([1, 2, 3, 1, 2, 3], 60)
    run(engine, request)
    assert request.output_ids == [1, 2, 3] * 11 + [1] + [(7 * n) % VOCAB for n in range(40, 66)]
    assert runner.calls["body"] < 40
    assert engine.scheduler.speculation.counts.num_accepted[0] > 5
    check_idle(engine, runner)


@pytest.mark.parametrize(("where", "number"), [("body", 4), ("sample", 3), ("result", 5)])
def test_a_step_with_drafts_that_fails_is_computed_anew(where, number):
    engine, runner = make_engine(fail_at=[(where, number)], speculation=eager(0.8), **ROOMY)
    requests = [make_request(range(n), 20, name=str(n)) for n in (1, 5, 30)]
    collected = run(engine, *requests)
    assert [collected.token_ids[each.request_id] for each in requests] == list(map(expected_output, requests))
    assert runner.num_rebuilds == 1
    check_idle(engine, runner)
