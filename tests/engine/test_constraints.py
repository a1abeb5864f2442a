"""Constraints in the engine: each sampled token is one that the tokens before it allow, whatever happens around it."""

import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.small_engines import SMALL_ENGINES
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
from tests.toy_engine import make_engine
from tests.toy_runner import first_allowed, toy_token
from xlaserve.core.constraint import AllOf, ConstraintFailed
from xlaserve.core.request import Request


def bits(allowed, vocab_size: int = VOCAB) -> np.ndarray:
    """A mask of the tokens for which `allowed` holds."""
    padded = np.zeros(-(-vocab_size // 32) * 32, bool)
    padded[:vocab_size] = [allowed(token) for token in range(vocab_size)]
    return np.packbits(padded, bitorder="little").view(np.int32)


@dataclass
class SumRule:
    """The tokens of the output, added up, and the next one must be `rest` modulo `modulus`: depends on all of them."""

    modulus: int = 7
    rest: int = 3
    vocab_size: int = VOCAB
    free_until: int = 0  # so many tokens may be anything
    fails_at: int | None = None  # with so many tokens
    seen: list[int] = field(default_factory=list)

    def advance(self, token_id: int) -> None:
        self.seen.append(token_id)

    def allows(self, token_id: int) -> bool:
        return (sum(self.seen) + token_id) % self.modulus == self.rest

    def mask(self) -> np.ndarray | None:
        if len(self.seen) == self.fails_at:
            raise ConstraintFailed("It cannot go on.")
        return None if len(self.seen) < self.free_until else bits(self.allows, self.vocab_size)

    def forced(self) -> list[int]:
        return []

    def copy(self) -> "SumRule":
        return replace(self, seen=list(self.seen))


def ruled_output(request: Request, rule: SumRule, vocab_size: int = VOCAB) -> list[int]:
    """What the request is to give, computed directly."""
    context, rule = list(request.prompt_ids), rule.copy()
    seed = request.seed + request.choice_index if request.params.temperature > 0 else 0
    while len(context) < request.max_total_tokens:
        token, mask = toy_token(context, vocab_size=vocab_size, seed=seed), rule.mask()
        context.append(token if mask is None else first_allowed(token, mask, vocab_size))
        rule.advance(context[-1])
        if context[-1] in request.stop_ids:
            break
    return context[request.num_prompt_tokens :]


def ruled(request: Request, **options) -> Request:
    request.constraint = SumRule(**options)
    return request


@BOTH_CLOCKS
def test_constrained_and_free_requests_in_one_batch_give_what_they_give_alone(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    free = make_request([1, 2], 9, name="free")
    requests = [ruled(make_request([i], 9, name=str(i)), modulus=i + 5) for i in range(3)]
    collected = run(engine, free, *requests)
    assert collected.token_ids["free"] == expected_output(free)
    for request in requests:
        rule = SumRule(modulus=request.constraint.modulus)
        assert collected.token_ids[request.request_id] == ruled_output(request, rule) != expected_output(request)
        assert request.constraint.seen == request.output_ids
    check_idle(engine, runner)


@BOTH_CLOCKS
def test_a_constraint_that_allows_anything_for_a_while(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    request = ruled(make_request([5], 8), free_until=4)
    tokens = run(engine, request).token_ids["r"]
    assert tokens == ruled_output(request, SumRule(free_until=4))
    assert tokens[:4] == expected_output(request)[:4]
    check_idle(engine, runner)


def test_masks_are_made_after_the_next_body_is_launched():
    """The host waits for the last step's tokens while the device computes, and free rows do not wait at all."""
    engine, runner = make_engine()
    engine.add_request(ruled(make_request([1], 5)))
    assert engine.step() == []
    runner.released.clear()
    thread = threading.Thread(target=engine.step)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "it waits for the first step"
    assert (runner.calls["body"], runner.calls["sample"]) == (2, 1), "whose token the second sample depends on"
    runner.released.set()
    thread.join(5)
    assert (runner.calls["body"], runner.calls["sample"]) == (2, 2)


@BOTH_CLOCKS
def test_the_row_of_a_request_that_has_just_ended_is_dropped(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    probe = ruled(make_request([5], 3))
    stop = ruled_output(probe, SumRule())[-1]
    ending = ruled(make_request([5], 10, name="ending", stop_ids={stop}))
    other = ruled(make_request([6], 10, name="other"))
    collected = run(engine, ending, other)
    assert collected.token_ids["ending"] == ruled_output(probe, SumRule())
    assert collected.last["ending"].finish_reason == "stop"
    assert collected.token_ids["other"] == ruled_output(other, SumRule())
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize("rows", [2, 4])
def test_each_choice_has_a_state_of_its_own(rows, async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, max_num_seqs=rows)
    request = ruled(make_request([5, 6], 6, temperature=1.0))
    choices = with_forks(request, 4)
    collected = run(engine, request)
    found = [collected.token_ids[choice.request_id] for choice in choices]
    assert found == [ruled_output(choice, SumRule()) for choice in choices]
    assert len({tuple(tokens) for tokens in found}) == 4
    check_idle(engine, runner)


def test_state_survives_preemption():
    found = {}
    for num_blocks in (200, 1 + 20):
        engine, runner = make_engine([num_blocks], max_num_batched_tokens=32)
        found[num_blocks] = run(engine, *(ruled(make_request([i, i], 60, name=str(i))) for i in range(4))).token_ids
        assert (engine.scheduler.num_preemptions > 0) == (num_blocks == 21)
        check_idle(engine, runner)
    assert found[21] == found[200]
    assert found[21]["0"] == ruled_output(make_request([0, 0], 60), SumRule())


@BOTH_CLOCKS
def test_a_constraint_that_fails_ends_its_request_alone(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    failing, none_left = ruled(make_request([1], 9, name="failing"), fails_at=2), make_request([2], 9, name="none left")
    none_left.constraint = AllOf([SumRule(modulus=2, rest=0), SumRule(modulus=2, rest=1)])
    first, good = make_request([3], 9, name="first"), ruled(make_request([4], 9, name="good"))
    first.constraint = SumRule(fails_at=0)
    collected = run(engine, failing, none_left, first, good)
    assert {name: len(tokens) for name, tokens in collected.token_ids.items()} == {
        "failing": 2, "none left": 0, "first": 0, "good": 9,
    }  # fmt: skip
    assert [collected.last[name].finish_reason for name in ("failing", "none left", "first")] == ["error"] * 3
    assert collected.last["failing"].error == "It cannot go on."
    assert "allows no token" in collected.last["none left"].error
    assert collected.token_ids["good"] == ruled_output(good, SumRule())
    check_idle(engine, runner)


def test_all_constraints_of_a_request_hold():
    engine, _ = make_engine()
    request = make_request([1], 12)
    request.constraint = AllOf([SumRule(3, 1), SumRule(4, 2), SumRule(free_until=99)])
    tokens = run(engine, request).token_ids["r"]
    assert [sum(tokens[: n + 1]) % 12 for n in range(12)] == [10] * 12
    assert AllOf([SumRule(free_until=9)]).mask() is None


@BOTH_CLOCKS
@pytest.mark.parametrize("where", ["body", "sample", "result"])
def test_a_failed_step_takes_nothing_from_the_state(where, async_scheduling):
    engine, runner = make_engine(fail_at=[(where, n) for n in (1, 4, 5, 9)], async_scheduling=async_scheduling)
    requests = [ruled(make_request([i], 12, name=str(i))) for i in range(3)]
    collected = run(engine, *requests)
    for request in requests:
        assert collected.token_ids[request.request_id] == ruled_output(request, SumRule())
    assert runner.num_rebuilds == 4
    check_idle(engine, runner)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(1, 15),  # prompt length
            st.integers(1, 12),  # max_tokens
            st.sampled_from([None, 0, 2]),  # free tokens; None: no constraint
            st.booleans(),  # whether token 0 is EOS
            st.integers(1, 3),  # answers
            st.integers(0, 3),  # steps before the next comes
        ),
        min_size=1,
        max_size=8,
    ),
    **SMALL_ENGINES,
)
def test_every_token_keeps_to_its_constraint(asked, aborted, num_blocks, rows, budget, async_scheduling, fail_at):
    """Whatever the pool, the chunks, the batch-mates, forks, preemptions, aborts and failed steps."""
    vocab_size = 20  # small: EOS is met often
    engine, runner = make_engine(
        [num_blocks],
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        async_scheduling=async_scheduling,
        vocab_size=vocab_size,
        fail_at=fail_at,
    )
    capacity = engine.scheduler.block_manager.capacity
    collected, requests = Collected(), []
    for number, (prompt_len, max_tokens, free, has_eos, n, steps) in enumerate(asked):
        options = {"temperature": 1.0, "seed": number, "stop_ids": {0} if has_eos else ()}
        request = make_request(range(prompt_len), max_tokens, name=str(number), capacity=capacity, **options)
        rule = None if free is None else SumRule(5, number % 5, vocab_size, free)
        request.constraint = rule
        requests += [(each, rule and rule.copy()) for each in with_forks(request, n)]
        engine.add_request(request)
        for _ in range(steps):
            collected.add(engine.step())
        if number in aborted and (output := engine.finish_request(request, "abort")):
            collected.add([output])
    collected.add(list(engine_outputs(engine)))
    check_idle(engine, runner)
    for request, rule in requests:
        tokens = collected.token_ids[request.request_id]
        expected = ruled_output(request, rule, vocab_size) if rule else expected_output(request, vocab_size)
        assert tokens == (expected[: len(tokens)] if request.finish_reason == "abort" else expected)
