"""BlockManager alone: exact small cases."""

import pytest

from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.block_pool import NULL_BLOCK
from xlaserve.core.request import Request
from xlaserve.sampling_params import SamplingParams


def make_request(token_ids=(1,), **options) -> Request:
    return Request("r", list(token_ids), SamplingParams(), 10_000, stop_ids=frozenset(), seed=0, **options)


def make_manager(*sizes: int, block_size=4, windows=(), max_step_tokens=8, **options) -> BlockManager:
    windows = windows or [None] * len(sizes)
    groups = [GroupSpec(size, window) for size, window in zip(sizes, windows, strict=True)]
    return BlockManager(groups, block_size, max_step_tokens=max_step_tokens, **options)


def compute(manager: BlockManager, request: Request, num_tokens: int | None = None) -> None:
    """As if the request's tokens, the first `num_tokens` or all it has, were launched in one step, and came back."""
    if not request.block_tables:
        assert manager.start(request, manager.match(request)) is not None
    num_tokens = len(request.token_ids) if num_tokens is None else num_tokens
    assert manager.allocate(request, num_tokens) is not None
    request.num_computed_tokens = num_tokens
    manager.publish(request)


def finish(manager: BlockManager, request: Request) -> None:
    manager.publish_last(request)
    manager.free(request)


def test_tables_grow_by_whole_blocks_and_report_only_the_new_ones():
    manager, request = make_manager(5), make_request(range(12))
    assert manager.allocate(request, 1) == ([(0, 0, 1)], [])
    assert manager.allocate(request, 4) == ([], [])
    assert manager.allocate(request, 12) == ([(0, 1, 2), (0, 2, 3)], [])
    assert request.block_tables == [[1, 2, 3]]
    assert manager.num_free(0) == 1
    assert manager.usage() == 0.75
    manager.check_integrity([request])


def test_allocation_over_groups_is_all_or_nothing():
    manager, first, second = make_manager(9, 3), make_request(), make_request()
    assert manager.allocate(first, 4) == ([(0, 0, 1), (1, 0, 1)], [])
    assert manager.allocate(second, 8) is None
    assert second.block_tables == []
    assert manager.allocate(first, 9) is None
    assert first.block_tables == [[1], [1]]
    assert (manager.num_free(0), manager.num_free(1)) == (7, 1)
    manager.check_integrity([first, second])


def test_spare_blocks_are_asked_of_every_group():
    manager, request = make_manager(9, 5), make_request(range(8))
    nothing = manager.match(request)
    assert manager.can_start(request, nothing, spare=2)
    assert not manager.can_start(request, nothing, spare=3)


def test_freeing_gives_everything_back_and_is_harmless_twice():
    manager, request = make_manager(4, 6, block_size=2), make_request(range(6))
    compute(manager, request)
    manager.free(request)
    manager.free(request)
    assert (manager.num_free(0), manager.num_free(1)) == (3, 5)
    assert manager.usage() == 0.0
    manager.check_integrity([request])


def test_blocks_of_unknown_contents_are_reused_first_then_the_least_recently_used():
    manager = make_manager(1 + 6, block_size=1)
    old, young = make_request([1, 2]), make_request([3, 4])
    compute(manager, old)  # 1 2
    compute(manager, young)  # 3 4
    manager.free(old)
    manager.free(young)
    newcomer = make_request([9] * 6)
    manager.allocate(newcomer, 6)
    assert newcomer.block_tables == [[5, 6, 2, 1, 4, 3]]  # of each the tail first


def test_capacity_is_that_of_the_smallest_group_without_the_null_block():
    assert make_manager(9, 5, block_size=16).capacity == 64


@pytest.mark.parametrize(("num_blocks", "endless"), [(1 + 6, True), (1 + 5, False)])
def test_a_group_with_a_window_holds_any_length_if_it_holds_the_window_and_two_steps(num_blocks, endless):
    manager = make_manager(100, num_blocks, windows=(None, 6), max_step_tokens=8)
    # 5 tokens before a step's first and 8 of each step: 21, in 6 blocks of 4 if they begin in the last place of one
    assert manager.capacity == (99 * 4 if endless else 5 * 4)


def test_integrity_check_finds_a_leak():
    manager, request = make_manager(4, block_size=2), make_request()
    manager.allocate(request, 2)
    with pytest.raises(AssertionError, match="block 1 counts 1, has 0"):
        manager.check_integrity([])


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize("same_moment", [False, True])
def test_whole_prompt_known_leaves_one_token_to_compute(length, same_moment):
    """A prompt that fills its blocks is shared but for its last block, of which all but the last token is copied."""
    manager = make_manager(20)
    first, second = make_request(range(length)), make_request(range(length))
    compute(manager, first)
    if not same_moment:
        finish(manager, first)
    hit = manager.match(second)
    partly = (length - 1) % 4
    known = length - 1 if not same_moment or length % 4 == 0 else length - 1 - partly  # unfinished blocks are not known
    assert hit.num_tokens == known
    copies = manager.start(second, hit).copies
    assert second.num_computed_tokens == known
    assert len(copies) == (known % 4 > 0)
    assert [len(table) for table in second.block_tables] == [-(-known // 4)]
    assert manager.allocate(second, length) is not None
    manager.check_integrity([first, second])


@pytest.mark.parametrize("difference", ["salt", "adapter", "weights", "first token", "order"])
def test_nothing_is_shared_where_something_differs(difference):
    manager = make_manager(20)
    compute(manager, make_request(range(8), cache_salt="a", adapter="b"))
    others = {
        "salt": make_request(range(8), cache_salt="b", adapter="b"),
        "adapter": make_request(range(8), cache_salt="a", adapter="a"),
        "weights": make_request(range(8), cache_salt="a", adapter="b", weights_version=1),
        "first token": make_request([9, *range(1, 8)], cache_salt="a", adapter="b"),
        "order": make_request([4, 5, 6, 7, 0, 1, 2, 3], cache_salt="a", adapter="b"),
    }
    assert manager.match(others[difference]).num_tokens == 0
    assert manager.match(make_request(range(8), cache_salt="a", adapter="b")).num_tokens == 7


def test_salt_is_not_mistaken_for_an_adapter():
    manager = make_manager(20)
    compute(manager, make_request(range(8), cache_salt="a"))
    assert manager.match(make_request(range(8), adapter="a")).num_tokens == 0


def test_hit_ends_at_the_first_gap():
    manager = make_manager(1 + 6)
    compute(manager, first := make_request(range(12)))
    finish(manager, first)  # 3 2 1 in the order in which they go
    other = make_request([50] * 16)
    manager.allocate(other, 16)  # three that nothing is known of, then block 3
    assert manager.match(make_request(range(12))).tables == ((1, 2),)


def test_prompt_that_parts_within_a_block_gets_a_copy_of_it():
    manager = make_manager(20)
    compute(manager, make_request(range(8)))
    parting = make_request([0, 1, 2, 3, 4, 5, 99, 98, 97])
    hit = manager.match(parting)
    assert (hit.num_tokens, hit.tables, hit.starts) == (6, ((1,),), (2,))
    assert manager.start(parting, hit) == ([], [(0, 2, 3)])
    assert parting.block_tables == [[1, 3]]


def test_of_several_blocks_the_one_that_begins_most_alike_is_copied():
    manager = make_manager(30)
    for tail in ([7, 8, 9, 9], [7, 8, 1, 1], [7, 1, 1, 1]):
        compute(manager, make_request([0, 0, 0, 0, *tail]))
    assert manager.match(make_request([0, 0, 0, 0, 7, 8, 1, 0, 0])).num_tokens == 7


def test_partly_filled_last_block_is_known_after_the_end():
    manager = make_manager(20)
    compute(manager, request := make_request(range(6)))
    follower = make_request([*range(6), 50, 51])
    assert manager.match(follower).num_tokens == 4
    finish(manager, request)
    assert manager.match(follower).num_tokens == 6


def test_window_gives_back_what_no_later_token_sees():
    manager = make_manager(20, 20, windows=(None, 6))
    request = make_request(range(30))
    compute(manager, request, 8)
    assert request.block_tables[1] == [1, 2]  # token 8 sees from 3 on
    compute(manager, request, 9)
    assert request.block_tables[1] == [NULL_BLOCK, 2, 3]  # token 9 sees from 4 on
    compute(manager, request, 30)
    assert request.block_tables[1][:6] == [NULL_BLOCK] * 6  # token 30 sees from 25 on
    assert len(request.block_tables[0]) == 8
    assert NULL_BLOCK not in request.block_tables[0]
    manager.check_integrity([request])


def test_window_needs_only_its_last_blocks_for_a_hit():
    manager = make_manager(20, 1 + 5, windows=(None, 6))
    first = make_request(range(24))
    for end in range(4, 25, 4):
        compute(manager, first, end)
    hit = manager.match(make_request(range(21)))
    assert hit.num_tokens == 20
    assert hit.tables[0] == tuple(first.block_tables[0][:5])
    assert hit.tables[1][:3] == (NULL_BLOCK,) * 3  # token 20 sees from 15 on
    assert all(hit.tables[1][3:])


def test_window_whose_blocks_are_gone_shortens_the_hit():
    manager = make_manager(40, 1 + 5, windows=(None, 6))
    first = make_request(range(24))
    for end in range(4, 25, 4):
        compute(manager, first, end)
    finish(manager, first)
    for number in range(5):  # takes all blocks of the window's pool, and no more than three of the other
        compute(manager, other := make_request([100 + number] * 4))
        finish(manager, other)
    assert manager.match(make_request(range(24))).num_tokens == 0


def test_fork_shares_all_blocks_and_the_first_to_write_copies_the_partial_one_only():
    manager, request = make_manager(20), make_request(range(6))
    forks = [request.add_fork("b", 1), request.add_fork("c", 2)]
    compute(manager, request)
    for fork in forks:
        manager.fork(request, fork)
    assert manager.num_free(0) == 19 - 2
    assert manager.pools[0].num_shared == 4
    assert manager.allocate(request, 7) == ([(0, 1, 3)], [(0, 2, 3)])
    assert manager.allocate(forks[0], 7) == ([(0, 1, 4)], [(0, 2, 4)])
    assert manager.allocate(forks[1], 7) == ([], [])  # nobody else refers to it any more
    assert [each.block_tables for each in (request, *forks)] == [[[1, 3]], [[1, 4]], [[1, 2]]]
    assert manager.pools[0].num_shared == 2
    manager.check_integrity([request, *forks])


def test_fork_at_the_end_of_a_block_copies_nothing():
    manager, request = make_manager(20), make_request(range(4))
    fork = request.add_fork("b", 1)
    compute(manager, request)
    manager.fork(request, fork)
    assert manager.allocate(request, 5) == ([(0, 1, 2)], [])
    assert manager.allocate(fork, 5) == ([(0, 1, 3)], [])


def test_without_prefix_caching_nothing_is_found():
    manager = make_manager(20, prefix_caching=False)
    compute(manager, request := make_request(range(9)))
    finish(manager, request)
    assert manager.match(make_request(range(9))).num_tokens == 0
    assert manager.pools[0].num_known == 0
