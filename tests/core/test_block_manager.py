"""BlockManager alone: exact small cases, then random use against a slow, obvious model of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from xlaserve.core.block_manager import NULL_BLOCK, BlockManager, GroupSpec
from xlaserve.core.request import Request
from xlaserve.sampling_params import SamplingParams


def make_request() -> Request:
    return Request("r", [1], SamplingParams(), max_total_tokens=2, stop_ids=frozenset(), seed=0)


def test_tables_grow_by_whole_blocks_and_report_only_the_new_ones():
    manager, request = BlockManager([GroupSpec(5)], block_size=4), make_request()
    assert manager.allocate(request, 1) == [(0, 0, 1)]
    assert manager.allocate(request, 4) == ()
    assert manager.allocate(request, 12) == [(0, 1, 2), (0, 2, 3)]
    assert request.block_tables == [[1, 2, 3]]
    assert manager.num_free(0) == 1
    assert manager.usage() == 0.75
    manager.check_integrity([request])


def test_allocation_over_groups_is_all_or_nothing():
    manager, first, second = BlockManager([GroupSpec(9), GroupSpec(3)], block_size=4), make_request(), make_request()
    assert manager.allocate(first, 4) == [(0, 0, 1), (1, 0, 1)]
    assert not manager.can_allocate(second, 8)
    assert manager.allocate(second, 8) is None
    assert second.block_tables == []
    assert manager.allocate(first, 9) is None
    assert first.block_tables == [[1], [1]]
    assert (manager.num_free(0), manager.num_free(1)) == (7, 1)
    manager.check_integrity([first, second])


def test_spare_blocks_are_asked_of_every_group():
    manager, request = BlockManager([GroupSpec(9), GroupSpec(5)], block_size=4), make_request()
    assert manager.can_allocate(request, 8, spare=2)
    assert not manager.can_allocate(request, 8, spare=3)


def test_freeing_gives_everything_back_and_is_harmless_twice():
    manager, request = BlockManager([GroupSpec(4), GroupSpec(6)], block_size=2), make_request()
    manager.allocate(request, 6)
    manager.free(request)
    manager.free(request)
    assert (manager.num_free(0), manager.num_free(1)) == (3, 5)
    assert manager.usage() == 0.0
    manager.check_integrity([request])


def test_blocks_are_reused_in_the_order_in_which_they_were_freed():
    manager, first, second = BlockManager([GroupSpec(5)], block_size=1), make_request(), make_request()
    manager.allocate(first, 2)
    manager.free(first)
    manager.allocate(second, 4)
    assert second.block_tables == [[3, 4, 2, 1]]


def test_capacity_is_that_of_the_smallest_group_without_the_null_block():
    assert BlockManager([GroupSpec(9), GroupSpec(5)], block_size=16).capacity == 64


def test_integrity_check_finds_a_leak():
    manager, request = BlockManager([GroupSpec(4)], block_size=2), make_request()
    manager.allocate(request, 2)
    with pytest.raises(AssertionError, match="block 1 counts 1, has 0"):
        manager.check_integrity([])


class RandomUse(RuleBasedStateMachine):
    """The model: a set of free blocks per group, and for each request how many blocks it should have."""

    @initialize(
        sizes=st.lists(st.integers(2, 12), min_size=1, max_size=3),
        block_size=st.integers(1, 5),
    )
    def start(self, sizes, block_size):
        self.manager = BlockManager([GroupSpec(size) for size in sizes], block_size)
        self.requests = [make_request() for _ in range(4)]
        self.free = [set(range(1, size)) for size in sizes]
        self.tables = {request: [[] for _ in sizes] for request in self.requests}

    @rule(index=st.integers(0, 3), num_tokens=st.integers(1, 30))
    def allocate(self, index, num_tokens):
        request = self.requests[index]
        tables = self.tables[request]
        wanted = [max(0, -(-num_tokens // self.manager.block_size) - len(table)) for table in tables]
        fits = all(want <= len(free) for want, free in zip(wanted, self.free, strict=True))
        assert self.manager.can_allocate(request, num_tokens) == fits
        entries = self.manager.allocate(request, num_tokens)
        assert (entries is not None) == fits
        for group, column, block in entries or ():
            self.free[group].remove(block)  # fails when it was not free
            assert column == len(tables[group])
            tables[group].append(block)
            wanted[group] -= 1
        assert not fits or not any(wanted)

    @rule(index=st.integers(0, 3))
    def free_request(self, index):
        request = self.requests[index]
        self.manager.free(request)
        for group, table in enumerate(self.tables[request]):
            self.free[group].update(table)
            table.clear()

    @invariant()
    def agrees_with_the_model(self):
        self.manager.check_integrity(self.requests)
        for group, free in enumerate(self.free):
            assert self.manager.num_free(group) == len(free)
            assert NULL_BLOCK not in free
        for request in self.requests:
            assert (request.block_tables or [[] for _ in self.free]) == self.tables[request]


TestRandomUse = RandomUse.TestCase
TestRandomUse.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
