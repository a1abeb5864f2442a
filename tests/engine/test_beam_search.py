"""Beam search: equal to transformers', whatever runs beside it; what it shares, and that it leaves nothing behind."""

import itertools
import threading

import pytest

from tests import tiny_models
from tests.engine.test_end_to_end import greedy, ids, start
from tests.integrity import check_scheduler
from tests.server.harness import wait_until
from tests.server.toy_service import make_toy_service
from tests.tiny_models import BEAM_SEARCHES, BEAM_TOKENS
from xlaserve.core.outputs import TokenLogprobs
from xlaserve.engine.beams import Beams
from xlaserve.engine.generations import Generations, collect
from xlaserve.errors import EngineUnavailable, GenerationFailed, InvalidRequest, Overloaded, RequestTimedOut
from xlaserve.sampling_params import BeamSearchParams, SamplingParams
from xlaserve.scheduling_params import SchedulingParams

PROMPT = tiny_models.prompt(tiny_models.BEAM_PROMPT)


def expected(name: str, search: tuple[int, int, float]) -> tuple[list[list[int]], list[float]]:
    recorded, key = tiny_models.load(tiny_models.BEAMS_FILE), tiny_models.beams_key(name, *search)
    answers = [[token for token in answer if token >= 0] for answer in recorded[f"{key}/answers"]]
    return answers, recorded[f"{key}/scores"]


def params_of(name: str, num_stop_ids: int, num_beams: int, length_penalty: float) -> BeamSearchParams:
    stop_ids = tiny_models.load(tiny_models.BEAMS_FILE)[f"{name}/stop_ids"][:num_stop_ids]
    return BeamSearchParams(
        n=num_beams,
        length_penalty=length_penalty,
        max_tokens=BEAM_TOKENS,
        stop_token_ids=tuple(stop_ids),
        ignore_eos=True,
        logprobs=0,
    )


def check(name: str, search: tuple[int, int, float], found) -> None:
    answers, scores = expected(name, search)
    assert ids(found) == answers
    assert [answer.score for answer in found] == pytest.approx(scores, abs=1e-4)
    for answer in found:
        total = sum(each.logprob for each in answer.logprobs)
        assert total / len(answer.token_ids) ** search[2] == pytest.approx(answer.score)
        is_stopped = len(answer.token_ids) < BEAM_TOKENS
        assert answer.finish_reason == "stop" or not is_stopped


@pytest.mark.parametrize("name", tiny_models.BEAM_MODELS)
def test_answers_and_scores_equal_transformers(name, cache_dir):
    with start(name, cache_dir) as llm:
        free = llm.service.free_blocks()
        for search in BEAM_SEARCHES:
            check(name, search, llm.beam_search([PROMPT], params_of(name, *search))[0])
        assert llm.service.free_blocks() == free
        scheduler = llm.service._scheduler
        # Beside the last token of each beam hardly more than the first search's prompt is computed.
        assert scheduler.prefix_hits > 0.9 * scheduler.prefix_queries


@pytest.mark.parametrize(
    "limits",
    [
        {"cache__num_blocks": 4, "model__max_model_len": 48},
        {"cache__block_size": 4, "cache__num_blocks": 13, "scheduler__max_num_seqs": 2, "model__max_model_len": 48},
        {"cache__prefix_caching": "false"},
        {"scheduler__policy": "fair", "scheduler__async_scheduling": "false"},
    ],
    ids=str,
)
def test_neither_the_pool_nor_neighbours_change_it(limits, cache_dir):
    """Beside searches run answers that take their blocks."""
    searches = [(0, 4, 1.0), (1, 3, 0.0), (2, 2, 2.0)]
    lengths = (15, 17, 2)
    params = [*(params_of("llama", *search) for search in searches), *[greedy(10)] * len(lengths)]
    prompts = [*[PROMPT] * len(searches), *tiny_models.prompts(lengths)]
    with start("llama", cache_dir, **limits) as llm:
        free = llm.service.free_blocks()
        found = iter(collect(Generations(llm.service, prompts, params, "a")))
        for search in searches:
            check("llama", search, list(itertools.islice(found, search[1])))
        assert ids(found) == tiny_models.greedy("llama", lengths, 10)
        assert llm.service.free_blocks() == free
        check_scheduler(llm.service._scheduler)


def test_a_beam_that_ends_among_the_further_candidates_is_no_answer():
    """Nor is it gone on with."""
    beams = Beams(2, length_penalty=0.0, stop_ids={9}, max_tokens=5)
    beams.advance([TokenLogprobs(0.0, ((1, -1.0), (2, -2.0), (9, -3.0)))])
    assert ([beam.token_ids for beam in beams.live], beams.finished) == ([(1,), (2,)], [])
    beams.advance([TokenLogprobs(0.0, ((9, -1.0), (3, -1.5), (4, -5.0))), TokenLogprobs(0.0, ((5, -2.0), (6, -9.0)))])
    assert [(beam.token_ids, beam.total) for beam in beams.finished] == [((1, 9), -2.0)]
    assert [beam.token_ids for beam in beams.live] == [(1, 3), (2, 5)]


@pytest.fixture
def make():
    made = []

    def make_service(**options):
        made.append(make_toy_service(b"hello", **({"step_seconds": 0.001} | options)))
        return made[-1]

    yield make_service
    for service, runner in made:
        assert service.shutdown(timeout=0)
        assert runner.violations == []
        check_scheduler(service._scheduler)
        assert not service._scheduler.has_requests


BEAMS = BeamSearchParams(n=3, max_tokens=30, ignore_eos=True)


def test_a_search_that_is_aborted_leaves_nothing_behind(make):
    service, _ = make()
    free = service.free_blocks()
    generations = Generations(service, [[65, 66, 67]], BEAMS, "a")
    generation = generations.by_index[0]
    while service._scheduler.prefix_hits < 20:
        assert generation.next(timeout=0.01) is None
    generations.abort()
    wait_until_idle(service)
    assert service.free_blocks() == free
    assert service._loop._num_places == 0
    assert generation.next(timeout=0).finish_reason == "abort"


def wait_until_idle(service) -> None:
    assert wait_until(lambda: not (service._loop.num_requests or service._scheduler.has_requests), seconds=10)


def test_a_timeout_counts_over_the_whole_and_leaves_the_best_so_far(make):
    service, _ = make(step_seconds=0.02)
    scheduling = SchedulingParams(timeout=0.2)
    answers = collect(Generations(service, [[65]], BEAMS, "a", scheduling=scheduling))
    assert {(answer.finish_reason, answer.stop_reason) for answer in answers} == {("length", "timeout")}
    assert all(0 < len(answer.token_ids) < 30 for answer in answers)
    assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    wait_until_idle(service)


def test_a_timeout_before_the_first_step(make):
    service, runner = make(max_num_seqs=1)
    runner.released.clear()
    other = service.submit([70], SamplingParams(max_tokens=2))
    generations = Generations(service, [[65]], BEAMS, "a", scheduling=SchedulingParams(timeout=0.05))
    threading.Timer(0.2, runner.released.set).start()
    with pytest.raises(RequestTimedOut):
        collect(generations)
    assert list(other)[-1].finish_reason == "length"


def test_logits_that_are_not_finite_fail_the_search_only(make):
    service, _ = make(not_ok=lambda context: len(context) == 5 and context[0] == 65)
    with pytest.raises(GenerationFailed, match="finite"):
        collect(Generations(service, [[65]], BEAMS, "a"))
    assert len(collect(Generations(service, [[66]], BEAMS, "b"))) == 3
    wait_until_idle(service)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_steps_of_a_search_do_not_queue_behind_newcomers(make, policy):
    """Nor do those take its rows between two steps: while it runs, what is left to them is three rows."""
    service, runner = make(policy=policy, max_num_seqs=6, num_blocks=(200,))
    scheduler = service._scheduler
    schedule, num_queued, num_others = scheduler.schedule, [], []

    def watched(*arguments):
        step = schedule(*arguments)
        if searches := [*scheduler.kept_rows]:
            num_queued.append(sum(request.continues is not None for request in scheduler.waiting))
            others = (request for request in scheduler.running if request.continues is None)
            num_others.append(sum(request not in searches for request in others))
        return step

    scheduler.schedule = watched
    runner.released.clear()  # all are there before the search's second step
    search = Generations(service, [[65]], BeamSearchParams(n=3, max_tokens=12, ignore_eos=True), "a")
    others = [service.submit([70], SamplingParams(max_tokens=60, ignore_eos=True, temperature=0)) for _ in range(9)]
    runner.released.set()
    collect(search)
    assert all(len(collect_all(other)) == 60 for other in others)
    assert len(num_queued) > 12
    assert {*num_queued} == {0}
    assert max(num_others) == 3
    wait_until_idle(service)
    assert list(scheduler.kept_rows) == []
    if policy == "fair":
        assert scheduler.waiting._tenants == {}


def collect_all(generation) -> list[int]:
    return [token for delta in generation for token in delta.token_ids]


def test_a_tenant_is_charged_for_what_its_search_computes(make):
    service, _ = make(policy="fair", block_size=4)
    generations = Generations(service, [[65]], BEAMS, "a", scheduling=SchedulingParams(tenant="searcher"))
    policy, charged = service._scheduler.waiting, []
    charge = policy.charge

    def count(request, num_tokens: int) -> None:
        before = policy._tenants[request.tenant].counter
        charge(request, num_tokens)
        charged.append(policy._tenants[request.tenant].counter - before)

    policy.charge = count
    collect(generations)
    assert charged
    assert {*charged} == {1.0}
    wait_until_idle(service)
    assert policy._tenants == {}


def test_a_shutdown_waits_for_a_search_and_for_its_next_steps(make):
    service, _ = make()
    generations = Generations(service, [[65]], BEAMS, "a")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(service.shutdown(timeout=20)))
    thread.start()
    assert wait_until(lambda: service.state == "draining", seconds=10)
    with pytest.raises(EngineUnavailable):
        service.submit([1], SamplingParams())
    assert [len(answer.token_ids) for answer in collect(generations)] == [30, 30, 30]
    thread.join(10)
    assert ended == [True]


def test_a_search_ends_when_the_engine_does(make):
    service, _ = make()
    generations = Generations(service, [[65]], BEAMS, "a")
    assert service.shutdown(timeout=0)
    with pytest.raises(EngineUnavailable):
        collect(generations)
    generations.abort()


def test_a_search_takes_as_many_places_as_it_has_beams(make):
    service, _ = make(max_num_seqs=4, max_waiting=0)
    generations = Generations(service, [[65]], BEAMS, "a")
    with pytest.raises(Overloaded):
        service.beam_search([66], BeamSearchParams(n=2))
    with pytest.raises(InvalidRequest, match="beam_width is 5"):
        service.beam_search([66], BeamSearchParams(beam_width=5))
    assert len(collect(generations)) == 3
    assert service._loop._num_places == 0


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 3, "beam_width": 2}, "n"),
        ({"beam_width": 11}, "beam_width"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_wrong_params(wrong, param):
    with pytest.raises(InvalidRequest) as caught:
        BeamSearchParams(**wrong)
    assert caught.value.param == param


def test_more_beams_than_there_are_alternatives(make):
    service, _ = make()
    with pytest.raises(InvalidRequest, match=r"beam_width is 10: .* it can be 8 at most"):
        service.beam_search([65], BeamSearchParams(n=10, ignore_eos=True, stop_token_ids=tuple(range(12))))
