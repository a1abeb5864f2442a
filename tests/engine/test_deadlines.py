"""Requests whose time is over, in the engine: all answers to one prompt end alike, and nothing is held afterwards."""

import pytest

from tests.engine.test_llm_engine import BOTH_CLOCKS, VOCAB, Collected, make_request, with_forks
from tests.toy_engine import make_engine
from tests.toy_runner import toy_output


@BOTH_CLOCKS
@pytest.mark.parametrize("begun", [True, False])
def test_a_deadline_ends_all_answers_to_a_prompt_alike(begun, async_scheduling):
    """Two have a row and two wait for one, when they have begun; what is in flight for them is dropped."""
    engine, runner = make_engine(max_num_seqs=2, async_scheduling=async_scheduling)
    free = engine.scheduler.block_manager.num_free(0)
    request = make_request([1, 2, 3], 50, name="a")
    request.deadline = 100.0
    answers = with_forks(request, 4)
    engine.add_request(request)
    engine.add_request(make_request([7], 3, name="other"))
    collected = Collected()
    for _ in range(4 if begun else 0):
        collected.add(engine.step())
    assert engine.expire(99.9) == []
    collected.add(engine.expire(100.0))
    assert engine.expire(1e9) == []
    ends = [collected.last[answer.request_id] for answer in answers]
    assert len(collected.last) == 4
    if begun:
        assert {(end.finish_reason, end.stop_reason, end.error) for end in ends} == {("length", "timeout", None)}
        assert collected.token_ids["a"]
    else:
        assert {(end.finish_reason, end.stop_reason) for end in ends} == {("timeout", None)}
        assert all("timeout" in end.error for end in ends)
    while engine.has_work:
        collected.add(engine.step())
    assert collected.token_ids["other"] == toy_output([7], 3, vocab_size=VOCAB)
    assert engine.scheduler.block_manager.num_free(0) == free
    assert runner.violations == []
