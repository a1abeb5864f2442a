"""Rules for logits in the engine: the device counts and forbids the right tokens, whatever happens around a request."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.small_engines import SMALL_ENGINES
from tests.engine.test_llm_engine import (
    BOTH_CLOCKS,
    Collected,
    check_idle,
    engine_outputs,
    make_request,
    run,
    with_forks,
)
from tests.toy_engine import make_engine
from tests.toy_runner import next_allowed, toy_token
from xlaserve.core.request import Request
from xlaserve.engine.logit_rules import logit_rules
from xlaserve.runner.commands import LogitRules

VOCAB = 20


def ruled_output(request: Request) -> list[int]:
    """What the toy gives under the request's rules, computed directly."""
    context, params = list(request.prompt_ids), request.params
    seed = request.seed + request.choice_index if params.temperature > 0 else 0
    while len(context) < request.max_total_tokens:
        early = len(context) - request.num_prompt_tokens < params.min_tokens
        banned = {*request.forbidden_ids, *(request.stop_ids if early else ())}
        allowed = np.array([t not in banned and t in (params.allowed_token_ids or range(VOCAB)) for t in range(VOCAB)])
        context.append(next_allowed(toy_token(context, vocab_size=VOCAB, seed=seed), allowed))
        if context[-1] in request.stop_ids:
            break
    return context[request.num_prompt_tokens :]


def test_a_request_that_asks_for_nothing_has_no_rules():
    assert logit_rules(make_request([1], stop_ids={3})) is None
    assert logit_rules(make_request([1], top_k=3, top_p=0.5, min_p=0.1, temperature=1)) is None


def test_rules_see_what_has_come_back():
    request = make_request([1, 2], stop_ids={9}, frequency_penalty=1.0, min_tokens=3)
    request.token_ids += [5, 5]
    assert logit_rules(request) == LogitRules(
        frequency_penalty=1.0, prompt_ids=(1, 2), output_ids=(5, 5), stop_ids=(9,), first_stop=5
    )


@BOTH_CLOCKS
@pytest.mark.parametrize("stop_ids", [{3}, {3, 4, 5}])
def test_report_33_min_tokens_holds_back_all_that_stops(stop_ids, async_scheduling):
    """A prompt longer than min_tokens does not count, and no token too many is held back."""
    engine, runner = make_engine(vocab_size=VOCAB, async_scheduling=async_scheduling, next_token=lambda context: 3)
    request = make_request(range(6), 9, stop_ids=stop_ids, min_tokens=4)
    output = run(engine, request)
    free = max(stop_ids) + 1
    assert output.token_ids["r"] == [free] * 4 + [3]
    assert output.last["r"].finish_reason == "stop"
    check_idle(engine, runner)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(1, 15),  # prompt length
            st.integers(1, 12),  # max_tokens
            st.integers(0, 4),  # which rules
            st.integers(1, 3),  # answers
            st.integers(0, 3),  # steps before the next comes
        ),
        min_size=1,
        max_size=8,
    ),
    **SMALL_ENGINES,
)
def test_report_32_rules_hold_and_tokens_are_counted_in_any_batch(
    asked, aborted, num_blocks, rows, budget, async_scheduling, fail_at
):
    """The toy checks at each sample that prompt and counted tokens are the context: with chunks, batch-mates, forks,
    preemptions, aborts and failed steps."""
    engine, runner = make_engine(
        [num_blocks], max_num_seqs=rows, max_num_batched_tokens=budget, async_scheduling=async_scheduling,
        vocab_size=VOCAB, fail_at=fail_at,
    )  # fmt: skip
    capacity = engine.scheduler.block_manager.capacity
    collected, requests = Collected(), []
    for number, (prompt_len, max_tokens, which, n, steps) in enumerate(asked):
        rules = [
            {},
            {"repetition_penalty": 1.5},
            {"presence_penalty": 1.0, "min_tokens": max_tokens // 2},
            {"allowed_token_ids": (0, 3, 7, 9)},
            {"logit_bias": {3: 1.0}},
        ][which]
        request = make_request(
            range(prompt_len), max_tokens, name=str(number), capacity=capacity, temperature=1.0, seed=number,
            stop_ids={0}, **rules,
        )  # fmt: skip
        request.forbidden_ids = (5, 7) if which % 2 else ()
        requests += with_forks(request, n)
        engine.add_request(request)
        for _ in range(steps):
            collected.add(engine.step())
        if number in aborted and (output := engine.finish_request(request, "abort")):
            collected.add([output])
    collected.add(list(engine_outputs(engine)))
    check_idle(engine, runner)
    for request in requests:
        tokens, expected = collected.token_ids[request.request_id], ruled_output(request)
        assert tokens == (expected[: len(tokens)] if request.finish_reason == "abort" else expected)


def test_a_row_that_may_sample_nothing_ends_with_an_error_alone(monkeypatch):
    engine, runner = make_engine(vocab_size=VOCAB)
    sample = runner._result
    monkeypatch.setattr(runner, "_result", lambda tokens, *rest: sample([-1 if t == 7 else t for t in tokens], *rest))
    runner.next_token = lambda context: 7 if context[0] == 1 else 8
    collected = run(engine, make_request([1], name="none"), make_request([2], name="good"))
    assert "allows no token" in (collected.last["none"].error or "")
    assert collected.token_ids["good"] == [8] * 4
