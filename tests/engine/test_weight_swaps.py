"""Weights that change under requests: every token is of one set of weights, and so is all that it was computed from."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_constraints import SumRule
from tests.engine.test_llm_engine import (
    BOTH_CLOCKS,
    Collected,
    assert_read,
    check_idle,
    make_request,
    with_forks,
)
from tests.integrity import check_scheduler
from tests.toy_engine import make_engine
from tests.toy_runner import first_allowed, toy_token
from xlaserve.core.request import Request
from xlaserve.engine.llm_engine import LLMEngine

requests_strategy = st.tuples(
    st.integers(1, 25),  # prompt length
    st.integers(1, 12),  # max_tokens
    st.sampled_from([0.0, 1.0]),  # temperature
    st.booleans(),  # whether token 0 is EOS
    st.integers(0, 2),  # which prompts begin alike
    st.integers(1, 4),  # answers
    st.sampled_from(["nothing"] * 5 + ["scores", "scores", "last", "mean", "cls"]),  # what is read of the prompt
    st.integers(0, 2),  # priority
    st.sampled_from(["a", "b"]),  # tenant
    st.booleans(),  # whether a rule over all of its tokens says what may come next
)
POLICIES = ("drain", "recompute", "abort")
adding = st.tuples(st.just("add"), requests_strategy)
stepping = st.tuples(st.just("step"), st.integers(1, 3))
swapping = st.one_of(
    st.tuples(st.just("swap"), st.sampled_from(POLICIES)),
    st.tuples(st.just("swap in place"), st.tuples(st.sampled_from(POLICIES), st.integers(0, 4))),
    st.tuples(st.just("abort"), st.integers(0, 7)),
)
rounds = st.tuples(adding, stepping, swapping, adding, stepping)  # so that what happens happens to something


class Swapped:
    """An engine over toy weights, what its requests gave, and which weights should have given it."""

    def __init__(self, vocab_size: int, **options):
        self.vocab_size = vocab_size
        self.engine, self.runner = make_engine(vocab_size=vocab_size, **options)
        self.collected = Collected()
        self.requests: list[Request] = []
        self.versions: dict[str, list[tuple[int, int]]] = {}  # (output tokens until then, weights from there on)
        self.newest = 0

    def add(self, request: Request, n: int = 1) -> None:
        self.requests += with_forks(request, n)
        self.collected.add(self.engine.add_request(request))
        self._note()

    def step(self) -> None:
        self.collected.add(self.engine.step())
        self.engine.drop_old_weights()
        check_scheduler(self.engine.scheduler)

    def swap(self, policy: str, *, hold: bool = False) -> None:
        self.newest += 1
        if not hold:
            self.runner.add_weights(self.newest, None)
        self.collected.add(self.engine.use_weights(self.newest, recompute=policy == "recompute", hold=hold))
        self._note()
        if policy == "abort":
            self.collected.add(self.engine.end_old())
        check_scheduler(self.engine.scheduler)

    def swap_in_place(self, policy: str, num_steps: int) -> None:
        """As where two sets of weights do not fit; with a time-out of some steps."""
        if policy == "recompute":
            self.collected.add(self.engine.pause())
        self.swap(policy, hold=True)
        for _ in range(num_steps):
            if self.engine.has_work:
                self.step()
        self.collected.add(self.engine.end_old())
        assert list(self.runner.weights) == [], "both do not fit"
        self.runner.add_weights(self.newest, None)
        self.engine.resume()

    def _note(self) -> None:
        for request in self.requests:
            noted = self.versions.setdefault(request.request_id, [])
            if not request.is_finished and (not noted or noted[-1][1] != request.weights_version):
                noted.append((request.num_output_tokens, request.weights_version))

    def finish(self) -> None:
        for _ in range(3000):
            if self.engine.has_work:
                self.step()
        check_idle(self.engine, self.runner)
        assert list(self.runner.weights) == [self.newest]
        assert len(self.engine.scheduler.weights) == 1

    def weights_of(self, request: Request, index: int) -> int:
        """Of the output token of this index."""
        return [version for count, version in self.versions[request.request_id] if count <= index][-1]

    def expected(self, request: Request) -> list[int]:
        context, rule = list(request.prompt_ids), SumRule(vocab_size=self.vocab_size)
        seed = request.seed + request.choice_index if request.params.temperature > 0 else 0
        for index in range(request.max_total_tokens - request.num_prompt_tokens):
            weights = self.weights_of(request, index)
            token = toy_token(context, vocab_size=self.vocab_size, seed=seed, weights=weights)
            if request.constraint is not None and (mask := rule.mask()) is not None:
                token = first_allowed(token, mask, self.vocab_size)
                rule.advance(token)
            context.append(token)
            if context[-1] in request.stop_ids:
                break
        return context[request.num_prompt_tokens :]

    def check(self, request: Request) -> None:
        tokens, expected = self.collected.token_ids[request.request_id], self.expected(request)
        if request.finish_reason == "abort":
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            weights = self.weights_of(request, 0)
            assert_read(self.collected.read.get(request.request_id), request, self.vocab_size, weights)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    trace=st.lists(rounds, min_size=1, max_size=5).map(lambda each: [*itertools.chain(*each)]),
    num_blocks=st.lists(st.integers(7, 14), min_size=1, max_size=2),
    window=st.sampled_from([None, 2, 5]),
    host_slots=st.sampled_from([0, 0, 9, 50]),
    block_size=st.integers(1, 5),
    rows=st.integers(1, 5),
    budget=st.sampled_from([1, 3, 8, 17]),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    async_scheduling=st.booleans(),
    fail_at=st.sets(st.tuples(st.sampled_from(["body", "sample", "result"]), st.integers(0, 30)), max_size=2),
)
def test_every_token_is_of_the_weights_it_should_be_of(
    trace, num_blocks, window, host_slots, block_size, rows, budget, policy, async_scheduling, fail_at
):
    """Whatever the pool, what is cached, forks, preemptions, aborts, failed steps and swaps at any moment."""
    vocab_size = 20
    swapped = Swapped(
        vocab_size, num_blocks=num_blocks, windows=[None, window][: len(num_blocks)], host_slots=host_slots,
        block_size=block_size, max_num_seqs=rows, max_num_batched_tokens=budget, policy=policy,
        async_scheduling=async_scheduling, fail_at=fail_at,
    )  # fmt: skip
    capacity = swapped.engine.scheduler.block_manager.capacity
    for action, detail in trace:
        if action == "add":
            prompt_len, max_tokens, temperature, has_eos, family, n, read, priority, tenant, is_ruled = detail
            max_tokens *= read in ("nothing", "scores") and max_tokens < 12
            number = len(swapped.requests)
            prompt_ids = [(7 * family + i) % vocab_size for i in range(min(prompt_len, capacity - 1))]
            options: dict[str, Any] = {"temperature": temperature, "seed": number, "stop_ids": {0} if has_eos else ()}
            if read == "scores":
                options["prompt_logprobs"] = number % 4
            elif read != "nothing":
                options["pooling"] = read
            request = make_request(prompt_ids, max_tokens, name=str(number), capacity=capacity, **options)
            request.priority, request.tenant = priority, tenant
            request.constraint = SumRule(vocab_size=vocab_size) if is_ruled else None
            swapped.add(request, n if max_tokens else 1)
        elif action == "abort" and detail < len(swapped.requests):
            output = swapped.engine.finish_request(swapped.requests[detail], "abort")
            swapped.collected.add([output] if output else [])
        elif action == "swap":
            swapped.swap(detail)
        elif action == "swap in place":
            swapped.swap_in_place(*detail)
        elif action == "step":
            for _ in range(detail):
                swapped.step()
    swapped.finish()
    for request in swapped.requests:
        swapped.check(request)


def run_with(swap: str, async_scheduling: bool) -> tuple[Swapped, Request, Request, Request]:
    """Two requests, of which one runs when the weights change, and another that comes then."""
    swapped = Swapped(1000, max_num_seqs=1, async_scheduling=async_scheduling)
    running, waiting = make_request([1, 2, 3], 9, name="running"), make_request([1, 2, 3], 9, name="waiting")
    swapped.add(running)
    swapped.add(waiting)
    for _ in range(4):
        swapped.step()
    swapped.swap(swap)
    newcomer = make_request([1, 2, 3], 9, name="newcomer")
    swapped.add(newcomer)
    swapped.finish()
    for request in (running, waiting, newcomer):
        swapped.check(request)
    return swapped, running, waiting, newcomer


@BOTH_CLOCKS
def test_drained_requests_keep_their_weights_and_others_get_the_new_ones(async_scheduling):
    _, *requests = run_with("drain", async_scheduling)
    assert [request.weights_version for request in requests] == [0, 1, 1]
    assert [request.finish_reason for request in requests] == ["length"] * 3


@BOTH_CLOCKS
def test_recomputed_requests_go_on_with_the_new_weights(async_scheduling):
    swapped, running, *_ = run_with("recompute", async_scheduling)
    (_, first), (count, second) = swapped.versions["running"]
    assert (first, second) == (0, 1)
    assert 0 < count < 9
    assert running.finish_reason == "length"


@BOTH_CLOCKS
def test_aborted_requests_are_told_and_others_get_the_new_weights(async_scheduling):
    swapped, running, waiting, newcomer = run_with("abort", async_scheduling)
    assert (running.finish_reason, waiting.finish_reason, newcomer.finish_reason) == ("abort", "length", "length")
    error = swapped.collected.last["running"].error
    assert error is not None
    assert "weights were replaced" in error
    assert (waiting.weights_version, newcomer.weights_version) == (1, 1)


def test_steps_of_both_weights_take_turns():
    """So that neither waits for the other; and no step has both."""
    swapped = Swapped(1000, num_blocks=(65,))
    swapped.add(make_request(range(3), 30, name="old"))
    swapped.step()
    swapped.swap("drain")
    swapped.add(make_request(range(3), 30, name="new"))
    swapped.step()
    versions = []
    execute = swapped.runner.execute

    def watch(command):
        versions.extend([command.weights_version] if hasattr(command, "weights_version") else [])
        return execute(command)

    swapped.runner.execute = watch
    for _ in range(10):
        swapped.step()
    assert versions in ([0, 1] * 5, [1, 0] * 5)
    swapped.finish()


def blocks_known(engine: LLMEngine) -> int:
    return engine.scheduler.block_manager.pools[0].num_known


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_cached_of_other_weights_is_not_found(policy):
    swapped = Swapped(1000)
    swapped.add(make_request(range(16), 1, name="before"))
    swapped.finish()
    assert blocks_known(swapped.engine) >= 4
    swapped.swap(policy)
    for name, cached in (("first", 0), ("second", 15)):
        request = make_request(range(16), 1, name=name)
        swapped.add(request)
        swapped.finish()
        swapped.check(request)
        assert request.num_cached_tokens == cached


def test_weights_are_dropped_as_soon_as_their_last_request_has_ended():
    swapped = Swapped(1000)
    request = make_request(range(3), 30, name="old")
    swapped.add(request)
    swapped.step()
    swapped.swap("drain")
    assert sorted(swapped.runner.weights) == [0, 1]
    swapped.engine.finish_request(request, "abort")
    swapped.engine.drop_old_weights()
    assert sorted(swapped.runner.weights) == [1]


def test_a_failed_step_while_both_run_keeps_both():
    swapped = Swapped(1000, fail_at={("result", 4)})
    swapped.add(make_request(range(3), 9, name="old"))
    swapped.step()
    swapped.swap("drain")
    swapped.add(make_request(range(3), 9, name="new"))
    swapped.finish()
    assert swapped.runner.num_rebuilds == 1
    for request in swapped.requests:
        swapped.check(request)
        assert request.finish_reason == "length"


def test_who_waits_for_weights_can_end_before_and_its_other_answers_stay():
    swapped = Swapped(1000)
    swapped.swap("drain", hold=True)
    first = make_request(range(3), 5, name="first")
    swapped.add(first, n=3)
    swapped.add(make_request(range(4), 5, name="second"))
    assert (swapped.engine.scheduler.num_waiting, swapped.engine.num_waiting_tokens) == (2, 7)
    assert not swapped.engine.has_work
    swapped.engine.finish_request(first, "abort")
    check_scheduler(swapped.engine.scheduler)
    swapped.runner.add_weights(1, None)
    swapped.engine.resume()
    swapped.finish()
    assert [request.finish_reason for request in swapped.requests] == ["abort", "length", "length", "length"]
    for request in swapped.requests[1:]:
        swapped.check(request)
        assert request.weights_version == 1


def first_step_of_a_search() -> Request:
    first = make_request(range(3), 1, name="first step")
    first.keeps_rows = 2
    return first


def next_step(first: Request) -> Request:
    request = make_request(range(4), 1, name="next step")
    request.continues = first
    return request


@pytest.mark.parametrize(("policy", "version", "reason"), [("drain", 0, "length"), ("recompute", 1, "length")])
def test_a_search_keeps_its_weights_or_goes_on_with_the_new_ones(policy, version, reason):
    swapped = Swapped(1000)
    first = first_step_of_a_search()
    swapped.add(first)
    for _ in range(3):
        swapped.step()
    assert first.is_finished
    swapped.swap(policy)
    request = next_step(first)
    swapped.add(request)
    for _ in range(3):
        swapped.step()
    assert (request.weights_version, request.finish_reason) == (version, reason)
    swapped.engine.scheduler.kept_rows.close(first)
    swapped.step()
    swapped.finish()


def test_a_search_between_two_steps_ends_with_its_weights():
    swapped = Swapped(1000)
    first = first_step_of_a_search()
    swapped.add(first)
    for _ in range(3):
        swapped.step()
    swapped.swap("abort")
    assert list(swapped.runner.weights) == [1]
    request = next_step(first)
    swapped.add(request)
    assert request.finish_reason == "abort"
    swapped.finish()
