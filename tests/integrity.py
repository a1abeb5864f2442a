"""What holds between two steps, whatever has happened."""

import itertools

from xlaserve.core.request import RequestStatus
from xlaserve.core.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Asserts that rows, blocks and the two clocks agree."""
    rows = [request.row for request in scheduler.running] + scheduler._free_rows
    assert sorted(rows) == list(range(scheduler.max_num_seqs)), f"rows {sorted(rows)}"
    scheduler.block_manager.check_integrity(scheduler.requests())
    assert all(request.weights_version in scheduler.weights for request in scheduler.requests())
    for request in scheduler.running:
        assert request.status is RequestStatus.RUNNING
        needed = -(-request.num_computed_tokens // scheduler.block_manager.block_size)
        most = -(-(request.num_computed_tokens + request.num_drafts) // scheduler.block_manager.block_size)
        assert all(needed <= len(table) <= most for table in request.block_tables)
        assert request.num_published_blocks <= needed
        assert request.num_computed_tokens <= request.num_tokens <= request.max_total_tokens
    for request in itertools.chain(scheduler.waiting, scheduler.held):
        assert request.status is RequestStatus.WAITING
        assert (request.row, request.num_computed_tokens, request.block_tables) == (-1, 0, [])
