"""BlockManager in random use, beside a memory of tokens that shows any wrong table."""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.test_block_manager import make_manager, make_request
from xlaserve.core.block_manager import Allocation
from xlaserve.core.block_pool import NULL_BLOCK
from xlaserve.core.host_pool import HostTier
from xlaserve.core.request import Request
from xlaserve.core.step import SchedulerOutput

POISON = -1


def few_prompts(length: int, family: int) -> list[int]:
    return [position >> family & 1 for position in range(length)]


class RandomUse(RuleBasedStateMachine):
    """Beside the manager a memory of tokens, on the device and on the host, which moves and writes as the runner would;
    each request's tables must lead to just its tokens, whoever else begins alike.

    A step is open until it is launched: then its offloads are made, then its moves in order, then what it writes.
    """

    @initialize(
        sizes=st.lists(st.integers(4, 14), min_size=1, max_size=3),
        block_size=st.integers(1, 4),
        window=st.sampled_from([1, 2, 3, 6]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        slots=st.sampled_from([0, 2, 8, 40]),
        min_tokens=st.integers(1, 4),
        max_step_blocks=st.sampled_from([1, 3, 100]),
    )
    def start(self, sizes, block_size, window, prefix_caching, slots, min_tokens, max_step_blocks):
        self.windows = [None, window, None][: len(sizes)]
        host = HostTier((slots,) * len(sizes), min_tokens, max_step_blocks) if slots and prefix_caching else None
        self.manager = make_manager(
            *sizes, block_size=block_size, windows=self.windows, max_step_tokens=5, prefix_caching=prefix_caching,
            host=host,
        )  # fmt: skip
        self.memory = [[[POISON] * block_size for _ in range(size)] for size in sizes]
        self.host: dict[tuple[int, int], list[int]] = {}  # blocks by (group, slot)
        self.under_way: list[tuple[list, dict]] = []  # offloads of launched steps, and what they bring
        self.requests: list[Request] = []  # that have blocks
        self.open_step()

    def open_step(self):
        self.step = SchedulerOutput()
        self.writes: list[tuple[int, int, int, int]] = []  # (group, block, offset, token)
        self.writers: list[Request] = []

    def new(self, tokens, salt):
        return make_request(tokens, cache_salt=salt)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), salt=st.sampled_from("ab"))
    def admit(self, tokens, salt):
        request = self.new(tokens, salt)
        hit = self.manager.match(request)
        assert 0 <= hit.num_tokens < len(tokens)
        if self.manager.can_start(request, hit, spare=0):
            self.step.move(*self.manager.start(request, hit))
            self.requests.append(request)

    @rule(length=st.integers(5, 14), family=st.integers(0, 3))
    def serve(self, length, family):
        """A request's whole life: few prompts, so that they come again after others have taken their blocks."""
        number = len(self.requests)
        self.admit(few_prompts(length, family), "a")
        if len(self.requests) > number:
            self.write(number, length, 0)
            self.end(number, properly=True)
            self.launch()

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 9), count=st.integers(1, 5), token=st.integers(0, 1))
    def write(self, index, count, token):
        """Schedules tokens that are known, or one that becomes known."""
        request = self.requests[index % len(self.requests)]
        if request in self.writers:
            self.launch()
        start = request.num_computed_tokens
        if start == len(request.token_ids):
            request.token_ids.append(token)
        end = min(start + count, len(request.token_ids))
        before = [pool.num_free for pool in self.manager.pools]
        fits = end <= request.num_own_slots  # then the scheduler does not ask either
        allocation = Allocation([], []) if fits else self.manager.allocate(request, end)
        if allocation is None:
            assert [pool.num_free for pool in self.manager.pools] == before
            most = -(-end // self.manager.block_size)
            tables = request.block_tables or [[]] * len(before)
            assert any(most - len(table) + 1 > free for table, free in zip(tables, before, strict=True))
            return
        self.step.move((), allocation.copies)
        self.writers.append(request)
        for position in range(start, end):
            column, offset = divmod(position, self.manager.block_size)
            for group, table in enumerate(request.block_tables):
                assert table[column] != NULL_BLOCK
                self.writes.append((group, table[column], offset, request.token_ids[position]))
        request.num_computed_tokens = end

    @rule()
    def launch(self):
        """At most one step is under way beside it."""
        if len(self.under_way) > 1:
            self.come_back()
        offloads = self.manager.end_step()
        self.under_way.append((offloads, {(g, slot): list(self.memory[g][block]) for g, block, slot in offloads}))
        for moves in self.step.moves:
            for group, block, slot in moves.restores:
                self.memory[group][block] = list(self.host[group, slot])
            for group, source, destination in moves.copies:
                self.memory[group][destination] = list(self.memory[group][source])
        for group, block, offset, token in self.writes:
            self.memory[group][block][offset] = token
        self.open_step()

    @precondition(lambda self: self.under_way)
    @rule()
    def come_back(self):
        offloads, brought = self.under_way.pop(0)
        self.host.update(brought)
        self.manager.offloads_arrived(offloads)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 9))
    def publish(self, index):
        self.launch()
        self.manager.publish(self.requests[index % len(self.requests)])

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 9))
    def fork(self, index):
        self.launch()
        request = self.requests[index % len(self.requests)]
        fork = self.new(request.token_ids, request.cache_salt)
        self.manager.fork(request, fork)
        self.requests.append(fork)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 9), properly=st.booleans())
    def end(self, index, properly):
        """A preemption may be part of the step, of one that has nothing in it to write."""
        request = self.requests.pop(index % len(self.requests))
        if properly or request in self.writers:
            self.launch()
        if properly:
            self.manager.publish_last(request)
        self.manager.free(request)

    @rule()
    def lose_the_device(self):
        self.launch()
        for request in self.requests:
            self.manager.free(request)
        self.requests.clear()
        self.under_way.clear()
        self.manager.forget_all()
        self.memory = [[[POISON] * len(block) for block in memory] for memory in self.memory]

    @invariant()
    def every_table_leads_to_its_tokens(self):
        if self.step.moves or self.writes:
            return
        self.manager.check_integrity(self.requests)
        for request in self.requests:
            computed = request.num_computed_tokens
            for memory, table, window in zip(self.memory, request.block_tables, self.windows, strict=True):
                first = 0 if window is None else max(0, computed - window + 1)
                read = [token for block in table for token in memory[block]]
                assert read[first:computed] == request.token_ids[first:computed]


TestRandomUse = RandomUse.TestCase
TestRandomUse.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
)


@pytest.mark.parametrize("seed", range(8))
def test_long_random_use_with_a_host_tier(seed):
    """The same in one long run of few prompts, in which blocks go to the host and come back all the time."""
    random = Random(seed)
    use = RandomUse()
    sizes, limits = [random.randint(7, 12) for _ in range(1 + seed % 2)], {"min_tokens": 1, "max_step_blocks": 9}
    use.start(sizes, random.randint(1, 3), random.choice([2, 6]), True, random.choice([6, 30]), **limits)

    def admit():
        use.admit(few_prompts(random.randint(5, 14), random.randrange(4)), "a")

    def any_of_them(act, *values):
        if use.requests:
            act(random.randrange(len(use.requests)), *values)

    actions = {
        admit: 4,
        lambda: use.serve(random.randint(5, 14), random.randrange(4)): 2,
        lambda: any_of_them(use.write, random.randint(1, 5), random.randrange(2)): 4,
        lambda: any_of_them(use.end, random.random() < 0.5): 5,
        lambda: any_of_them(use.fork): 0.3,
        lambda: any_of_them(use.publish): 1,
        use.launch: 2,
        use.lose_the_device: 0.05,
    }
    for action in random.choices(list(actions), list(actions.values()), k=3000):
        action()
        use.every_table_leads_to_its_tokens()
    assert use.manager.num_restores > 100
