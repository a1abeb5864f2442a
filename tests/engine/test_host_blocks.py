"""The engine with a host tier over the toy runner; tests/engine/test_llm_engine.py draws one at random too."""

from tests.engine.test_llm_engine import check_idle, expected_output, make_request, run
from tests.toy_engine import make_engine


def test_blocks_brought_back_from_the_host_also_after_the_device_was_lost():
    engine, runner = make_engine([1 + 12], host_slots=30, max_num_seqs=1, fail_at=[("body", 40)])
    manager = engine.scheduler.block_manager
    for turn in range(4):
        for first in (1, 2, 3):
            request = make_request([first] * 30, 4, name=f"{turn} {first}")
            assert run(engine, request).token_ids[request.request_id] == expected_output(request)
        assert (manager.num_restores > 0) == (turn > 0)
    assert runner.num_rebuilds == 1
    check_idle(engine, runner)
