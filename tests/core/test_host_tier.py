"""BlockManager with a host tier: exact small cases."""

import pytest

from tests.core.test_block_manager import compute, finish, make_manager, make_request
from xlaserve.core.block_manager import BlockManager
from xlaserve.core.block_pool import NULL_BLOCK
from xlaserve.core.host_pool import HostTier
from xlaserve.core.prefix_hit import ON_HOST


def with_host(*sizes: int, slots=20, min_tokens=1, max_step_blocks=100, **options) -> BlockManager:
    return make_manager(*sizes, host=HostTier((slots,) * len(sizes), min_tokens, max_step_blocks), **options)


def evict_all(manager: BlockManager) -> list:
    """Uses every block for something else, in a step that comes back; returns its offloads."""
    other = make_request([999] * ((manager.groups[0].num_blocks - 1) * manager.block_size), cache_salt="other")
    assert manager.allocate(other, len(other.token_ids)) is not None
    offloads = manager.end_step()
    manager.offloads_arrived(offloads)
    manager.free(other)
    return offloads


def test_full_blocks_that_are_evicted_go_to_the_host_and_come_back():
    manager = with_host(1 + 4)
    compute(manager, first := make_request(range(14)))
    finish(manager, first)
    assert evict_all(manager) == [(0, 3, 0), (0, 2, 1), (0, 1, 2)]  # the tail first; 4 is partly filled
    second = make_request(range(14))
    hit = manager.match(second)
    assert hit == (12, ((ON_HOST,) * 3,), ())
    assert manager.can_start(second, hit, spare=0)
    assert not manager.can_start(second, hit, spare=1)
    start = manager.start(second, hit)
    assert start == ([(0, 1, 2), (0, 2, 1), (0, 3, 0)], [])
    assert second.block_tables == [[1, 2, 3]]
    assert (manager.num_offloads, manager.num_restores) == (3, 3)
    third = make_request(range(14))
    assert manager.match(third).tables == ((1, 2, 3),)  # what is being restored is known


def test_prefix_goes_on_from_the_device_to_the_host():
    manager = with_host(1 + 6)
    compute(manager, first := make_request(range(13)))
    finish(manager, first)
    compute(manager, make_request([50] * 16))  # two unknown blocks, then the last two known, one of them full
    manager.offloads_arrived(manager.end_step())
    assert manager.match(make_request(range(13))).tables == ((1, 2, ON_HOST),)


def test_restored_block_is_not_copied_to_the_host_again():
    manager = with_host(1 + 3)
    compute(manager, first := make_request(range(9)))
    finish(manager, first)
    assert len(evict_all(manager)) == 2
    compute(manager, second := make_request(range(9)))
    manager.end_step()
    finish(manager, second)
    assert evict_all(manager) == []


def test_nothing_is_found_on_the_host_before_its_step_has_come_back():
    manager = with_host(1 + 3)
    compute(manager, first := make_request(range(9)))
    finish(manager, first)
    manager.allocate(other := make_request([7] * 12), 12)
    offloads = manager.end_step()
    manager.free(other)
    assert manager.match(make_request(range(9))).num_tokens == 0
    manager.offloads_arrived(offloads)
    assert manager.match(make_request(range(9))).num_tokens == 8


def test_host_keeps_what_had_arrived_when_the_device_is_lost_and_nothing_else():
    manager = with_host(1 + 3)
    for token in (1, 2):
        compute(manager, request := make_request([token] * 9))
        finish(manager, request)
        if token == 1:
            evict_all(manager)
    manager.allocate(other := make_request([7] * 12), 12)
    assert len(manager.end_step()) == 2  # on their way
    manager.free(other)
    manager.forget_all()
    assert manager.match(make_request([1] * 9)).num_tokens == 8
    assert manager.match(make_request([2] * 9)).num_tokens == 0
    manager.check_integrity([])


@pytest.mark.parametrize(("min_tokens", "found"), [(8, 8), (9, 0)])
def test_what_the_host_adds_must_be_worth_it(min_tokens, found):
    manager = with_host(1 + 3, min_tokens=min_tokens)
    compute(manager, first := make_request(range(9)))
    finish(manager, first)
    evict_all(manager)
    assert manager.match(make_request(range(9))).num_tokens == found


def test_a_step_moves_no_more_blocks_than_it_may():
    manager = with_host(1 + 8, max_step_blocks=2)
    for token in (1, 2):
        compute(manager, request := make_request([token] * 16))
        finish(manager, request)
    assert len(evict_all(manager)) == 2
    manager = with_host(1 + 8, max_step_blocks=2, slots=20)
    for _ in range(2):  # the head of what is cached is evicted last
        compute(manager, request := make_request(range(9)))
        finish(manager, request)
        evict_all(manager)
    first, second = make_request(range(9)), make_request(range(9), cache_salt="b")
    assert manager.match(first).num_tokens == 8
    manager.start(first, manager.match(first))
    assert not manager._can_restore(0, 1)
    manager.end_step()
    assert manager._can_restore(0, 2)
    assert manager.match(second).num_tokens == 0


def test_slots_are_reused_least_recently_used_first_but_none_that_the_step_reads():
    manager = with_host(1 + 3, slots=2)
    compute(manager, first := make_request(range(9)))
    finish(manager, first)
    evict_all(manager)
    second = make_request(range(9))
    compute(manager, other := make_request([5] * 9))
    manager.publish(other)
    manager.end_step()
    finish(manager, other)
    start = manager.start(second, manager.match(second))  # evicts the other's blocks
    assert [slot for _, _, slot in start.restores] == [1, 0]
    assert manager.end_step() == []
    manager.allocate(second, 9)
    assert manager.end_step() == [(0, 1, 0)]  # over the tail, which is needed less than the head


def test_only_the_blocks_that_a_window_sees_are_restored():
    manager = with_host(1 + 7, 1 + 7, windows=(None, 6))
    compute(manager, first := make_request(range(24)))
    finish(manager, first)
    evict_all(manager)
    hit = manager.match(second := make_request(range(21)))
    assert hit.tables == ((ON_HOST,) * 5, (NULL_BLOCK,) * 3 + (ON_HOST,) * 2)  # token 20 sees from 15 on
    assert len(manager.start(second, hit).restores) == 7
