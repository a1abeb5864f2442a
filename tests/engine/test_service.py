"""What the service accepts, refuses and caps, and how a generation ends; over the toy runner and byte tokens."""

import threading
import time

import pytest

from tests.toy_engine import make_engine
from tests.toy_runner import toy_output
from xlaserve.core.outputs import FinishReason
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.output_processor import TextDelta
from xlaserve.engine.service import Generation, GenerationService
from xlaserve.engine.tokenizer import load_tokenizer
from xlaserve.errors import EngineUnavailable, InvalidRequest, Overloaded
from xlaserve.sampling_params import SamplingParams

EOS = 256  # beyond the bytes: the tokenizer has no text for it
VOCAB = 257
MAX_MODEL_LEN = 64


class Setup:
    def __init__(self, *, max_waiting: int = 100, max_model_len: int = MAX_MODEL_LEN, **options):
        self.engine, self.runner = make_engine(**{"num_blocks": [1 + 100], "vocab_size": VOCAB} | options)
        info = ModelInfo(
            name="toy",
            max_model_len=max_model_len,
            vocab_size=VOCAB,
            max_request_tokens=self.engine.scheduler.block_manager.capacity,
            eos_ids=frozenset({EOS}),
        )
        self.service = GenerationService(self.engine, load_tokenizer(None, None), info, max_waiting=max_waiting)
        self.blocks_at_start = self.service.free_blocks()

    def check_serves(self) -> None:
        """The next normal request is served, and nothing is held afterwards."""
        params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        assert ids_of(self.service.submit([1, 2], params)) == toy_output([1, 2], 3, vocab_size=VOCAB)
        assert wait_until(lambda: self.service.free_blocks() == self.blocks_at_start)
        assert self.service.stats()["running"] == self.service.stats()["waiting"] == 0


@pytest.fixture
def setup():
    made: list[Setup] = []

    def make(**options) -> Setup:
        made.append(Setup(**options))
        return made[-1]

    yield make
    for one in made:
        one.runner.released.set()
        assert one.service.shutdown(timeout=0)
        assert one.runner.violations == []


def wait_until(condition, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def ids_of(generation: Generation) -> list[int]:
    return [token_id for delta in generation for token_id in delta.token_ids]


def text_and_end(generation: Generation) -> tuple[str, FinishReason | None]:
    deltas = list(generation)
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


def greedy(max_tokens: int | None = 5, **params) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | params)


def test_text_arrives_piece_by_piece_and_ends_once(setup):
    one = setup(answer=[*b"hello", EOS])
    generation = one.service.submit([1, 2], greedy(20, ignore_eos=False))
    assert text_and_end(generation) == ("hello", "stop")
    assert generation.next(timeout=0) is None
    generation.abort()
    assert wait_until(lambda: one.service.free_blocks() == one.blocks_at_start)


def test_stop_string_ends_the_request_in_the_engine_too(setup):
    one = setup(answer=b"one two three four five six", step_seconds=0.002)
    generation = one.service.submit([1, 2], greedy(50, stop="three"))
    assert text_and_end(generation) == ("one two ", "stop")
    assert wait_until(lambda: one.service.free_blocks() == one.blocks_at_start)
    assert one.runner.calls["body"] < 30
    finished = 'request_success_total{finished_reason="stop",model_name="toy"} 1.0'
    assert finished in one.service.metrics.render().decode()


@pytest.mark.parametrize(
    ("prompt_ids", "params", "param"),
    [
        ([], greedy(), "prompt"),
        ([VOCAB], greedy(), "prompt"),
        ([5, -1], greedy(), "prompt"),
        ([200_000], greedy(), "prompt"),
        ([1.5], greedy(), "prompt"),
        (["a", 1], greedy(), "prompt"),
        ([1], greedy(stop_token_ids=(VOCAB,)), "stop_token_ids"),
        ([1] * MAX_MODEL_LEN, greedy(1), "prompt"),
        ([1] * (MAX_MODEL_LEN + 1), greedy(None), "prompt"),
    ],
)
def test_bad_request_is_refused_by_name_and_touches_nobody(setup, prompt_ids, params, param):
    one = setup()
    with pytest.raises(InvalidRequest) as refused:
        one.service.submit(prompt_ids, params)
    assert (refused.value.param, refused.value.status) == (param, 400)
    one.check_serves()


def test_highest_id_of_the_vocabulary_is_allowed(setup):
    assert len(ids_of(setup().service.submit([VOCAB - 1], greedy(2, stop_token_ids=(VOCAB - 1,), seed=1)))) in (1, 2)


def test_context_error_has_the_usual_text(setup):
    one = setup()
    with pytest.raises(InvalidRequest) as refused:
        one.service.submit([1] * 70, greedy(30))
    assert refused.value.code == "context_length_exceeded"
    assert str(refused.value) == (
        "This model's maximum context length is 64 tokens. However, you requested 100 tokens (70 in the messages, 30 "
        "in the completion). Please reduce the length of the messages or completion."
    )


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "given"),
    [
        (MAX_MODEL_LEN - 1, None, 1),
        (MAX_MODEL_LEN - 1, 1, 1),
        (MAX_MODEL_LEN - 1, 50, 1),  # more than is left is cut, not refused
        (MAX_MODEL_LEN - 10, None, 10),
        (3, 10**9, MAX_MODEL_LEN - 3),
        (3, 7, 7),
    ],
)
def test_output_is_cut_to_what_the_context_has_left(setup, prompt_len, max_tokens, given):
    deltas = list(setup().service.submit([1] * prompt_len, greedy(max_tokens)))
    assert sum(len(delta.token_ids) for delta in deltas) == given
    assert deltas[-1].finish_reason == "length"


def test_request_larger_than_the_pool_is_refused_and_nobody_waits_behind_it(setup):
    one = setup(num_blocks=[1 + 8], block_size=16, max_model_len=1024, max_num_batched_tokens=64)
    for length in (128, 200):
        with pytest.raises(InvalidRequest, match="holds only 128") as refused:
            one.service.submit([1] * length, greedy())
        assert (refused.value.param, refused.value.status) == ("prompt", 400)
    one.check_serves()
    deltas = list(one.service.submit([1] * 100, greedy(500)))
    assert sum(len(delta.token_ids) for delta in deltas) == 28
    assert deltas[-1].finish_reason == "length"
    one.check_serves()


def test_prompts_longer_than_the_token_budget_are_served(setup):
    one = setup(max_num_batched_tokens=32, max_model_len=200)
    for length in (33, 64, 65):
        assert ids_of(one.service.submit([1] * length, greedy(3))) == toy_output([1] * length, 3, vocab_size=VOCAB)


def test_eos_ends_the_output_unless_it_is_ignored(setup):
    one = setup(answer=[65, EOS, 66, 67])
    assert ids_of(one.service.submit([1], greedy(4, ignore_eos=False))) == [65, EOS]
    assert ids_of(one.service.submit([1], greedy(4))) == [65, EOS, 66, 67]
    deltas = list(one.service.submit([1], greedy(4, stop_token_ids=(66,))))
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", 66)


def test_seeds_repeat_and_requests_without_one_differ(setup):
    one = setup()

    def sample(seed: int | None) -> list[int]:
        return ids_of(one.service.submit([1, 2, 3], greedy(8, temperature=1.0, seed=seed)))

    assert sample(42) == sample(42) != sample(0)
    assert len({tuple(sample(None)) for _ in range(5)}) == 5


def test_queue_beyond_its_limit_is_refused_at_once_and_accepted_requests_finish(setup):
    one = setup(max_waiting=4, max_num_seqs=2)
    one.runner.released.clear()
    accepted, refused = [], []
    for number in range(50):
        try:
            accepted.append(one.service.submit([number], greedy(3)))
        except Overloaded as error:
            refused.append(error)
    assert (len(accepted), len(refused)) == (6, 44)
    assert {(error.code, error.retry_after) for error in refused} == {("queue_full", 1)}
    one.runner.released.set()
    assert [ids_of(generation) for generation in accepted] == [
        toy_output([number], 3, vocab_size=VOCAB) for number in range(6)
    ]
    one.check_serves()


@pytest.mark.parametrize("when", ["at once", "after a token", "by leaving the loop"])
def test_abort_ends_the_generation_and_frees_its_blocks(setup, when):
    one = setup(step_seconds=0.005)
    generation = one.service.submit([1, 2], greedy(None))
    if when == "by leaving the loop":
        for delta in generation:
            assert delta.finish_reason is None
            break
    else:
        if when == "after a token":
            assert generation.next(timeout=5) is not None
        generation.abort()
        generation.abort()
    rest = []
    while (piece := generation.next(timeout=5)) is not None:
        rest.append(piece)
    assert rest[-1].finish_reason == "abort"
    assert generation.next(timeout=0) is None
    one.check_serves()


def test_waiting_for_a_piece_can_time_out(setup):
    one = setup()
    one.runner.released.clear()
    generation = one.service.submit([1], greedy(2))
    assert generation.next(timeout=0) is None
    assert generation.next(timeout=0.02) is None
    one.runner.released.set()
    assert len(ids_of(generation)) == 2


def test_text_that_cannot_be_made_frees_the_request(setup, monkeypatch):
    one = setup(step_seconds=0.002)
    generation = one.service.submit([1], greedy(None))

    def push(output) -> TextDelta:
        raise ValueError("broken")

    monkeypatch.setattr(generation._processor, "push", push)
    with pytest.raises(ValueError, match="broken"):
        generation.next(timeout=5)
    monkeypatch.undo()
    one.check_serves()


def test_timings_are_in_order(setup):
    one = setup(step_seconds=0.005)
    generation = one.service.submit([1], greedy(5))
    list(generation)
    timings = generation.timings
    queue, ttft, total = timings["queue"], timings["ttft"], timings["total"]
    assert queue is not None
    assert ttft is not None
    assert total is not None
    assert 0 <= queue < ttft < total < 5
    time.sleep(0.01)
    assert generation.timings == timings


def test_shutdown_gives_time_then_ends_what_is_left(setup):
    one = setup(step_seconds=0.005, max_model_len=390)
    short, long = one.service.submit([1], greedy(5)), one.service.submit([2], greedy(None))
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(one.service.shutdown(timeout=0.5)))
    thread.start()
    assert wait_until(lambda: one.service.state == "draining")
    with pytest.raises(EngineUnavailable):
        one.service.submit([3], greedy())
    assert text_and_end(short)[1] == "length"
    assert text_and_end(long)[1] == "abort"
    thread.join(5)
    assert ended == [True]
    assert one.service.free_blocks() == one.blocks_at_start


def test_service_of_a_dead_engine_says_so(setup):
    one = setup(failure=SystemExit("killed"), fail_at=[("body", 1)])
    deltas = list(one.service.submit([1], greedy(5)))
    assert deltas[-1].finish_reason == "error"
    assert deltas[-1].error
    assert one.service.state == "failed"
    with pytest.raises(EngineUnavailable):
        one.service.submit([1], greedy())
