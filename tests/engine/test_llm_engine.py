"""The engine over the toy runner: whatever happens around a request, it gives what it would give alone."""

import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.integrity import check_scheduler
from tests.toy_engine import make_engine
from tests.toy_runner import WRONG, ToyRunner, toy_hidden, toy_output, toy_score
from xlaserve.core.outputs import EngineOutput, TokenLogprobs
from xlaserve.core.reading import Pooled, Pooling, PromptRead, PromptScores, Scoring, make_reading
from xlaserve.core.request import Request, RequestStatus
from xlaserve.engine.llm_engine import MAX_FAILURES, LLMEngine
from xlaserve.errors import EngineUnavailable
from xlaserve.sampling_params import PoolingParams, PoolingType, SamplingParams

VOCAB = 1000
BOTH_CLOCKS = pytest.mark.parametrize("async_scheduling", [True, False])


def make_request(
    prompt_ids, max_tokens=4, *, name="r", capacity=10_000, stop_ids=(), pooling: PoolingType | None = None, **params
) -> Request:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": max_tokens, "seed": 0} | params
    return Request(
        request_id=name,
        prompt_ids=list(prompt_ids),
        params=SamplingParams(**asked),
        max_total_tokens=min(len(prompt_ids) + max_tokens, capacity),
        stop_ids=frozenset(stop_ids),
        eos_ids=frozenset(stop_ids),
        seed=asked["seed"],
        reading=make_reading(len(prompt_ids), PoolingParams(pooling=pooling) if pooling else SamplingParams(**asked)),
    )


def expected_output(request: Request, vocab_size: int = VOCAB) -> list[int]:
    return toy_output(
        request.prompt_ids,
        request.max_total_tokens - request.num_prompt_tokens,
        vocab_size=vocab_size,
        stop_ids=request.stop_ids,
        seed=request.seed + request.choice_index if request.params.temperature > 0 else 0,
    )


def assert_read(found: PromptRead | None, request: Request, vocab_size: int = VOCAB, weights: int = 0) -> None:
    """What was read of the prompt is what the toy model makes of all that comes before each position."""
    prompt, reading = request.prompt_ids, request.reading
    if isinstance(reading, Pooling):
        hidden = [toy_hidden(prompt[: end + 1], weights) for end in range(len(prompt))]
        wanted = {len(prompt): np.mean(hidden, axis=0)}.get(reading.num_received, hidden[reading.end - 1])
        assert isinstance(found, Pooled)
        np.testing.assert_allclose(found.embedding, wanted, rtol=1e-6)
    elif isinstance(reading, Scoring):
        assert isinstance(found, PromptScores)
        options = {"vocab_size": vocab_size, "weights": weights}
        scores = [toy_score(prompt[:at], prompt[at], **options) for at in range(1, len(prompt))]
        columns = [[score[column] for score in scores] for column in range(4)]
        num_top = request.params.prompt_logprobs
        assert found.top_ids.shape == found.top_logprobs.shape == (len(prompt) - 1, num_top)
        np.testing.assert_allclose(found.logprobs, columns[0], rtol=1e-6)
        assert found.ranks.tolist() == columns[1]
        assert found.top_ids.tolist() == [ids[:num_top] for ids in columns[2]]
        assert found.top_logprobs.tolist() == [logprobs[:num_top] for logprobs in columns[3]]
    else:
        assert found is None


def with_forks(request: Request, n: int) -> list[Request]:
    """The request and n - 1 further answers to it."""
    return [request, *(request.add_fork(f"{request.request_id} {i}", i) for i in range(1, n))]


class Collected:
    """Token ids by request, and the outputs that ended them; fails on anything that follows an end."""

    def __init__(self):
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self.logprobs: dict[str, list[TokenLogprobs]] = defaultdict(list)
        self.read: dict[str, PromptRead] = {}
        self.last: dict[str, EngineOutput] = {}

    def add(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.last, "an output after the last one"
            self.token_ids[output.request_id] += output.token_ids
            self.logprobs[output.request_id] += output.logprobs or ()
            if output.read is not None:
                assert output.request_id not in self.read, "once"
                assert len(self.token_ids[output.request_id]) <= 1, "with the first token at the latest"
                self.read[output.request_id] = output.read
            if output.finish_reason:
                self.last[output.request_id] = output


def run(engine: LLMEngine, *requests: Request, steps: int = 10_000) -> Collected:
    """Adds the requests and steps until all is done."""
    collected = Collected()
    for request in requests:
        engine.add_request(request)
    for _ in range(steps):
        if not engine.has_work:
            return collected
        collected.add(engine.step())
        check_scheduler(engine.scheduler)
    raise AssertionError(f"not done after {steps} steps")


def check_idle(engine: LLMEngine, runner: ToyRunner) -> None:
    """Everything is back where it was, and the runner was used as it must be."""
    manager = engine.scheduler.block_manager
    assert [manager.num_free(g) for g in range(len(manager.groups))] == [n - 1 for n in runner.num_blocks]
    assert runner.violations == []
    assert not engine.has_work


@BOTH_CLOCKS
@pytest.mark.parametrize("chunk", [1, 3, 4, 8, 16, 17])
def test_any_prompt_length_in_any_chunks_beside_a_running_request(chunk, async_scheduling):
    engine, runner = make_engine(max_num_batched_tokens=chunk, async_scheduling=async_scheduling)
    companion = make_request([3], max_tokens=150, name="companion")
    engine.add_request(companion)
    together = Collected()
    for length in range(1, 41):
        alone = make_request(range(length), max_tokens=3, name=f"alone {length}")
        mixed = make_request(range(length), max_tokens=3, name=f"mixed {length}")
        single_engine, single_runner = make_engine(max_num_batched_tokens=chunk, async_scheduling=async_scheduling)
        assert run(single_engine, alone).token_ids[alone.request_id] == expected_output(alone)
        check_idle(single_engine, single_runner)
        assert single_runner.calls["body"] == -(-length // chunk) + 2, "chunks of the prompt, then two decodes"
        engine.add_request(mixed)
        while not mixed.is_finished and chunk > 1:  # a budget of 1 is the companion's alone until it is done
            together.add(engine.step())
            check_scheduler(engine.scheduler)
    together.add(list(engine_outputs(engine)))
    assert together.token_ids["companion"] == expected_output(companion)
    for length in range(1, 41):
        assert together.token_ids[f"mixed {length}"] == toy_output(range(length), 3, vocab_size=VOCAB)
    check_idle(engine, runner)


def engine_outputs(engine: LLMEngine):
    while engine.has_work:
        yield from engine.step()


@BOTH_CLOCKS
def test_no_token_before_the_last_chunk(async_scheduling):
    engine, _ = make_engine(max_num_batched_tokens=4, async_scheduling=async_scheduling)
    engine.add_request(make_request(range(16), max_tokens=1))
    counts = [len(engine.step()) for _ in range(4 + async_scheduling)]
    assert counts == [0] * (3 + async_scheduling) + [1]


@BOTH_CLOCKS
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_exactly_max_tokens_are_given_and_no_more_computed(max_tokens, async_scheduling):
    engine, runner = make_engine(async_scheduling=async_scheduling)
    collected = run(engine, make_request([1, 2], max_tokens))
    assert len(collected.token_ids["r"]) == max_tokens
    assert collected.last["r"].finish_reason == "length"
    assert runner.calls["body"] == max_tokens


def test_late_token_after_eos_is_dropped():
    engine, runner = make_engine()
    stop = toy_output([5], 3, vocab_size=VOCAB)[-1]
    request = make_request([5], 10, stop_ids={stop})
    collected = run(engine, request)
    assert collected.token_ids["r"] == toy_output([5], 3, vocab_size=VOCAB)
    assert (collected.last["r"].finish_reason, collected.last["r"].stop_reason) == ("stop", None)
    assert runner.calls["body"] == 4, "one step was already under way"
    check_idle(engine, runner)


def test_preempted_requests_give_the_same_tokens_and_logprobs():
    requests = {}
    collected = {}
    for num_blocks in (200, 1 + 20):
        engine, runner = make_engine([num_blocks], max_num_batched_tokens=32)
        requests[num_blocks] = [
            make_request([i, i], 60, name=str(i), logprobs=2, temperature=float(i % 2), seed=i) for i in range(4)
        ]
        collected[num_blocks] = run(engine, *requests[num_blocks])
        check_idle(engine, runner)
        assert (engine.scheduler.num_preemptions > 0) == (num_blocks == 21)
    assert collected[200].token_ids == collected[21].token_ids
    assert collected[200].logprobs == collected[21].logprobs
    assert all(len(tokens) == 60 for tokens in collected[21].token_ids.values())
    assert all(request.num_prompt_tokens == 2 for request in requests[21])


def test_logprobs_reach_only_those_who_asked():
    engine, _ = make_engine()
    quiet, asking = make_request([1], 1, name="quiet"), make_request([2], 1, name="asking", logprobs=1)
    collected = run(engine, quiet, asking)
    assert collected.last["quiet"].logprobs is None
    (logprobs,) = collected.logprobs["asking"]
    (token,) = expected_output(asking)
    assert logprobs.logprob == pytest.approx(-token / 1000)
    assert logprobs.top == ((token, pytest.approx(-token / 1000)),)


@BOTH_CLOCKS
@pytest.mark.parametrize("where", ["body", "sample", "result"])
def test_failed_step_is_recomputed_and_nothing_is_given_twice(where, async_scheduling):
    engine, runner = make_engine(fail_at=[(where, 4)], async_scheduling=async_scheduling)
    requests = [make_request(range(n), 8, name=str(n)) for n in (1, 5, 30)]
    collected = run(engine, *requests)
    assert {name: collected.token_ids[name] for name in ("1", "5", "30")} == {
        request.request_id: expected_output(request) for request in requests
    }
    assert runner.num_rebuilds == 1
    assert not engine.has_failed
    check_idle(engine, runner)


def test_repeated_failure_ends_every_request_with_an_error():
    engine, runner = make_engine(fail_at=[("body", n) for n in range(2, 20)], max_num_seqs=1)
    collected = run(engine, make_request([1], 9, name="running"), make_request([2], 9, name="waiting"))
    assert {output.finish_reason for output in collected.last.values()} == {"error"}
    assert len(collected.last) == 2
    assert all(output.error for output in collected.last.values())
    assert runner.num_rebuilds == MAX_FAILURES - 1
    assert engine.has_failed
    with pytest.raises(EngineUnavailable):
        engine.add_request(make_request([3]))
    check_idle(engine, runner)


def test_failure_in_the_middle_of_a_prompt_does_not_repeat_for_ever():
    """The first chunk succeeds each time, so it must not count as success: no token has come of it."""
    engine, runner = make_engine(fail_at=[("body", n) for n in range(1, 100, 2)], max_num_batched_tokens=4)
    collected = run(engine, make_request(range(20)), steps=20)
    assert collected.last["r"].finish_reason == "error"
    assert runner.calls["body"] == 2 * MAX_FAILURES


def test_device_state_that_cannot_be_rebuilt_ends_the_engine():
    engine, runner = make_engine(fail_at=[("body", 1)])

    def rebuild():
        raise RuntimeError("out of memory")

    runner.rebuild = rebuild
    assert run(engine, make_request([1], 5)).last["r"].finish_reason == "error"
    assert engine.has_failed


def test_non_finite_row_ends_its_request_alone():
    engine, runner = make_engine(not_ok=lambda context: context[0] == 13 and len(context) == 4)
    bad, good = make_request([13, 1], 9, name="bad"), make_request([14, 1], 9, name="good")
    collected = run(engine, bad, good)
    assert collected.token_ids["bad"] == expected_output(bad)[:2]
    assert collected.last["bad"].finish_reason == "error"
    assert collected.token_ids["good"] == expected_output(good)
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize("steps_before", range(7))
def test_abort_in_each_phase_frees_row_and_blocks_at_once(steps_before, async_scheduling):
    """Queued, between two chunks, with a token in flight, decoding, finished."""
    engine, runner = make_engine(max_num_batched_tokens=8, async_scheduling=async_scheduling)
    other, request = make_request([9], 12, name="other"), make_request(range(20), 2)
    engine.add_request(other)
    engine.add_request(request)
    collected = Collected()
    for _ in range(steps_before):
        collected.add(engine.step())
    was_finished = request.is_finished
    output = engine.finish_request(request, "abort")
    assert (output is None) == was_finished
    if output:
        assert (output.finish_reason, output.token_ids) == ("abort", ())
    assert engine.finish_request(request, "abort") is None
    assert (request.row, request.block_tables, request.status) == (-1, [], RequestStatus.FINISHED)
    check_scheduler(engine.scheduler)
    collected.add(list(engine_outputs(engine)))
    assert collected.token_ids["other"] == expected_output(other)
    check_idle(engine, runner)


def test_blocks_of_an_aborted_request_are_safe_to_reuse_at_once():
    engine, runner = make_engine([1 + 4], max_num_seqs=2)
    first = make_request(range(12), 4, name="first")
    engine.add_request(first)
    engine.step()
    engine.finish_request(first, "abort")  # its body is still under way
    second = make_request(range(12, 0, -1), 4, name="second")
    collected = run(engine, second)
    assert collected.token_ids["second"] == expected_output(second)
    assert WRONG not in collected.token_ids["second"]
    check_idle(engine, runner)


@BOTH_CLOCKS
@pytest.mark.parametrize("window", [1, 4, 9])
@pytest.mark.parametrize("num_blocks", range(2, 16))
def test_any_request_that_the_pool_claims_to_hold_is_served_in_it(num_blocks, window, async_scheduling):
    """Alone: whoever cannot run then never does. A window's blocks are back only after two steps have taken theirs."""
    engine, runner = make_engine(
        (40, num_blocks), windows=[None, window], max_num_batched_tokens=8, async_scheduling=async_scheduling
    )
    capacity = min(engine.scheduler.block_manager.capacity, 60)
    request = make_request(range(capacity - 1), 1)
    engine.add_request(request)
    for _ in range(30):
        if engine.has_work:
            engine.step()
    assert request.output_ids == expected_output(request)
    assert request.num_preemptions == 0
    check_idle(engine, runner)


def test_next_step_is_launched_before_the_last_one_has_come_back():
    engine, runner = make_engine()
    runner.released.clear()
    engine.add_request(make_request([1], 5))
    assert engine.step() == []
    thread = threading.Thread(target=engine.step)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "it waits for the first step"
    assert runner.calls["body"] == 2, "and has launched the second one"
    runner.released.set()
    thread.join(5)
    assert not thread.is_alive()


def test_long_prompt_does_not_run_ahead_of_the_device():
    engine, runner = make_engine(max_num_batched_tokens=4)
    runner.released.clear()
    engine.add_request(make_request(range(40), 1))
    thread = threading.Thread(target=lambda: list(engine_outputs(engine)))
    thread.start()
    thread.join(0.1)
    assert runner.calls["body"] == 2
    runner.released.set()
    thread.join(5)
    assert runner.calls["body"] == 10
