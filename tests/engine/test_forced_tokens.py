"""Tokens that a constraint leaves no choice about: appended without sampling, and nothing else changes."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.small_engines import SMALL_ENGINES
from tests.engine.test_constraints import bits
from tests.engine.test_llm_engine import (
    BOTH_CLOCKS,
    VOCAB,
    Collected,
    assert_read,
    check_idle,
    engine_outputs,
    make_request,
    run,
    with_forks,
)
from tests.toy_engine import make_engine
from tests.toy_runner import first_allowed, toy_token
from xlaserve.core.constraint import ConstraintFailed
from xlaserve.core.request import Request
from xlaserve.core.step import ScheduledRow, SchedulerOutput
from xlaserve.engine.constrained import MAX_FORCED, constrain
from xlaserve.runner.commands import Sample, SampleRow

START = (7, 3, 3)  # given tokens that the output begins with


@dataclass
class FormRule:
    """A form: given tokens between free ones. How many are given, and which, depends on what was chosen before."""

    longest: int = 6
    vocab_size: int = VOCAB
    start: tuple[int, ...] = START
    fails_at: int | None = None  # with so many tokens
    seen: list[int] = field(default_factory=list)
    given: tuple[int, ...] = ()

    def __post_init__(self):
        self.given = self.given or self.start if not self.seen else self.given

    def advance(self, token_id: int) -> None:
        self.seen.append(token_id)
        if self.given:
            assert token_id == self.given[0]
            self.given = self.given[1:]
        else:
            total = sum(self.seen)
            self.given = tuple((total + 3 * n) % self.vocab_size for n in range(total % (self.longest + 1)))

    def mask(self) -> np.ndarray | None:
        if len(self.seen) == self.fails_at:
            raise ConstraintFailed("It cannot go on.")
        return bits(lambda token: token == self.given[0], self.vocab_size) if self.given else None

    def forced(self) -> tuple[int, ...]:
        return self.given

    def copy(self) -> "FormRule":
        return replace(self, seen=list(self.seen))


def sampled_one_by_one(request: Request, rule: FormRule) -> tuple[list[int], int]:
    """What the request is to give, and how many of those tokens were given and followed a given one."""
    context, num_saved, was_given = list(request.prompt_ids), 0, False
    seed = request.seed + request.choice_index if request.params.temperature > 0 else 0
    while len(context) < request.max_total_tokens:
        token, mask = toy_token(context, vocab_size=rule.vocab_size, seed=seed), rule.mask()
        num_saved += was_given and mask is not None
        was_given = mask is not None
        context.append(token if mask is None else first_allowed(token, mask, rule.vocab_size))
        rule.advance(context[-1])
        if context[-1] in request.stop_ids:
            break
    return context[request.num_prompt_tokens :], num_saved


def in_form(request: Request, **options) -> Request:
    request.constraint = FormRule(**options)
    return request


@BOTH_CLOCKS
def test_given_tokens_are_not_sampled(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    request = in_form(make_request([5, 6], 60))
    expected, num_saved = sampled_one_by_one(request, FormRule())
    assert run(engine, request).token_ids["r"] == expected
    assert request.constraint.seen == expected
    assert num_saved > 30
    assert runner.calls["body"] <= 60 - num_saved + 1
    check_idle(engine, runner)


@pytest.mark.parametrize(
    ("runs", "num_rows", "expected"),
    [((2,), 1, True), ((1,), 1, False), ((2,), 2, True), ((2,), 3, False), ((3, 3), 8, True), ((3, 2, 1), 8, False)],
)
def test_a_longer_body_has_to_be_worth_it_for_all_rows(runs, num_rows, expected):
    requests = [in_form(make_request([5]), start=tuple(range(1, 1 + n))) for n in runs]
    requests += [make_request([5]) for _ in range(num_rows - len(runs))]
    rows = [ScheduledRow(request, row, 0, 1, (5,), True) for row, request in enumerate(requests)]
    engine, _ = make_engine()
    output = SchedulerOutput(rows=list(rows), samples=list(rows))
    sample = Sample(tuple(SampleRow(row, row, 1) for row in range(num_rows)), want_logprobs=False)
    left, outputs = constrain(engine.scheduler, output, sample)
    assert len(outputs) == (sum(runs) if expected else 0)
    assert len(left.rows) == len(output.samples) == num_rows - (len(runs) if expected else 0)
    assert len(left.masks) == (0 if expected else len(runs))


@BOTH_CLOCKS
def test_others_in_the_batch_do_not_notice(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    requests = [in_form(make_request([n], 30, name=str(n)), longest=2 + n) for n in range(3)]
    free = make_request([9], 30, name="free")
    alone = run(make_engine()[0], make_request([9], 30)).token_ids["r"]
    collected = run(engine, *requests, free)
    assert collected.token_ids["free"] == alone
    for number, request in enumerate(requests):
        assert collected.token_ids[request.request_id] == sampled_one_by_one(request, FormRule(2 + number))[0]
    check_idle(engine, runner)


@BOTH_CLOCKS
def test_a_prompt_that_is_read_tells_of_itself_with_the_first_token_all_the_same(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, max_num_batched_tokens=4)
    request = in_form(make_request(range(9), 20, prompt_logprobs=2))
    found = run(engine, request)
    assert found.token_ids["r"] == sampled_one_by_one(request, FormRule())[0]
    assert_read(found.read["r"], request)
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize(
    "params",
    [{"logprobs": 2}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.1}, {"logit_bias": {5: 1.0}}],
    ids=str,
)
def test_tokens_that_the_device_must_see_are_sampled_all_the_same(params, async_scheduling):
    """The toy runner tells when its counts miss one."""
    engine, runner = make_engine(async_scheduling=async_scheduling)
    request = in_form(make_request([5, 6], 40, **params))
    collected = run(engine, request)
    assert collected.token_ids["r"] == sampled_one_by_one(request, FormRule())[0]
    assert len(collected.logprobs["r"]) == (40 if "logprobs" in params else 0)
    assert runner.calls["body"] >= 40
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4])
def test_the_length_is_kept_to_amid_given_tokens(max_tokens, async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    collected = run(engine, in_form(make_request([5, 6], max_tokens)))
    assert collected.token_ids["r"][:3] == list(START[:max_tokens])
    assert (len(collected.token_ids["r"]), collected.last["r"].finish_reason) == (max_tokens, "length")
    check_idle(engine, runner)


@BOTH_CLOCKS
def test_a_stop_token_ends_the_output_amid_given_tokens(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    request = in_form(make_request([5, 6], 30, stop_ids={12}), start=(10, 11, 12, 13))
    request.eos_ids = frozenset()
    collected = run(engine, request)
    assert collected.token_ids["r"] == [10, 11, 12]
    assert (collected.last["r"].finish_reason, collected.last["r"].stop_reason) == ("stop", 12)
    assert runner.calls["body"] == 1, "the prompt: nothing was left to sample"
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize("budget", [1, 5, 16])
def test_a_long_text_is_appended_and_computed_bit_by_bit(budget, async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, max_num_batched_tokens=budget)
    start = tuple(range(1, 2 * MAX_FORCED + 20))
    request = in_form(make_request([5, 6], len(start) + 5), start=start)
    engine.add_request(request)
    collected = Collected()
    collected.add(engine.step())
    while not collected.token_ids["r"]:
        collected.add(engine.step())
    assert len(collected.token_ids["r"]) == MAX_FORCED
    collected.add(list(engine_outputs(engine)))
    assert collected.token_ids["r"] == sampled_one_by_one(request, FormRule(start=start))[0]
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize("rows", [2, 4])
def test_each_choice_is_given_its_own(rows, async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling, max_num_seqs=rows)
    request = in_form(make_request([5, 6], 20, temperature=1.0))
    choices = with_forks(request, 4)
    collected = run(engine, request)
    found = [collected.token_ids[choice.request_id] for choice in choices]
    assert found == [sampled_one_by_one(choice, FormRule())[0] for choice in choices]
    assert len({tuple(tokens) for tokens in found}) == 4
    check_idle(engine, runner)


@BOTH_CLOCKS
def test_a_constraint_that_fails_after_given_tokens(async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    failing, good = (
        in_form(make_request([1], 9, name="failing"), fails_at=2),
        in_form(make_request([2], 9, name="good")),
    )
    collected = run(engine, failing, good)
    assert collected.token_ids["failing"] == list(START[:2])
    assert collected.last["failing"].error == "It cannot go on."
    assert collected.token_ids["good"] == sampled_one_by_one(good, FormRule())[0]
    check_idle(engine, runner)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(1, 15),  # prompt length
            st.integers(1, 20),  # max_tokens
            st.integers(0, 9),  # given tokens in a row, at most
            st.booleans(),  # whether token 0 is EOS
            st.integers(1, 3),  # answers
            st.integers(0, 3),  # steps before the next comes
            st.booleans(),  # whether it wants logprobs
        ),
        min_size=1,
        max_size=8,
    ),
    **SMALL_ENGINES,
)
def test_the_output_is_the_same_whatever_happens_around_it(
    asked, aborted, num_blocks, rows, budget, async_scheduling, fail_at
):
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
    for number, (prompt_len, max_tokens, longest, has_eos, n, steps, logprobs) in enumerate(asked):
        options = {"temperature": 1.0, "seed": number, "stop_ids": {0} if has_eos else ()}
        options |= {"logprobs": 0} if logprobs else {}
        request = make_request(range(prompt_len), max_tokens, name=str(number), capacity=capacity, **options)
        request.constraint = FormRule(longest, vocab_size)
        requests += with_forks(request, n)
        engine.add_request(request)
        for _ in range(steps):
            collected.add(engine.step())
        if number in aborted and (output := engine.finish_request(request, "abort")):
            collected.add([output])
    collected.add(list(engine_outputs(engine)))
    check_idle(engine, runner)
    for request in requests:
        tokens = collected.token_ids[request.request_id]
        rule = FormRule(request.constraint.longest, vocab_size)
        expected, _ = sampled_one_by_one(request, rule)
        assert tokens == (expected[: len(tokens)] if request.finish_reason == "abort" else expected)
