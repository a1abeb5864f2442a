"""The block tables of all requests: which block of each layer group's pool holds which of their tokens.

Each layer group has a pool of its own, and so a block table of its own per request; all share one block size. Block 0
of every pool is the null block; in a table it means "no block": in layers with a sliding window, one that has passed.

Blocks are shared by reference count: by requests that begin alike (`match`, `start`) and by forks (`fork`). Full blocks
are never written again. A partly filled one is: whoever is about to, while others refer to it, gets a copy first.

With a host tier (`host_pool.py`) full blocks that are evicted are copied to host memory, and a prefix goes on there
where it ends on the device. The copies are made before anything else in a step: they find what the blocks held when it
began. That is what was evicted, for nothing that the step itself brings into a block is evicted to the host: what it
restores is there still, and all else is published only once it has come back.

Knows no tensor and no scheduling. What it orders is carried out on the device in the order in which steps are launched:
so blocks may be given back, published and copied while steps that use them are still under way.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xlaserve.core.block_pool import NULL_BLOCK, BlockPool, Tokens
from xlaserve.core.host_pool import Contents, HostPool, HostTier
from xlaserve.core.prefix_hit import ON_HOST, Found, PrefixHit
from xlaserve.core.prefix_keys import next_key, root_key
from xlaserve.core.request import Request

BlockEntry = tuple[int, int, int]  # (group, column, block): column `column` of the group's table now names `block`
BlockCopy = tuple[int, int, int]  # (group, source, destination)
HostCopy = tuple[int, int, int]  # (group, block, host slot), in either direction


@dataclass(frozen=True)
class GroupSpec:
    """One layer group's pool."""

    num_blocks: int  # the null block included
    sliding_window: int | None = None  # tokens, the query's own included


class Allocation(NamedTuple):
    entries: list[BlockEntry]
    copies: list[BlockCopy]  # to be made before anything is written


class Start(NamedTuple):
    restores: Sequence[HostCopy] = ()  # to be made before the copies
    copies: Sequence[BlockCopy] = ()  # to be made before anything is written


class BlockManager:
    """All operations are O(1) per block; a request's tables live in `Request.block_tables`, written only here.

    max_step_tokens: that one request may get in a step. host: needs prefix_caching.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        *,
        max_step_tokens: int,
        prefix_caching: bool = True,
        host: HostTier | None = None,
    ):
        assert groups
        assert block_size >= 1
        self.groups = tuple(groups)
        self.block_size = block_size  # tokens
        on_evict = [functools.partial(self._offload, index) if host else None for index in range(len(groups))]
        self.pools = tuple(BlockPool(group.num_blocks, hook) for group, hook in zip(groups, on_evict, strict=True))
        self.host_pools = tuple(map(HostPool, host.num_slots)) if host else ()  # per group, or none at all
        self.num_offloads = 0  # blocks, since the start
        self.num_restores = 0
        self.prefix_caching = prefix_caching
        self.num_releases = 0  # how often blocks were given back: tells whether waiting can have helped
        self._host = host
        self._most_copies = host.max_step_blocks if host else 0  # to the host and back, in a step and group
        self._offloads: list[HostCopy] = []  # of the step being made,
        self._step_offloads = [0] * len(groups)  # how many of each group,
        self._step_restores = [0] * len(groups)  # and likewise
        self._max_step_tokens = max_step_tokens
        self._sliding_groups = [index for index, group in enumerate(groups) if group.sliding_window is not None]

    @property
    def capacity(self) -> int:
        """Tokens that one request can hold when it is alone."""
        return min(self._capacity(group) for group in self.groups)

    def _capacity(self, group: GroupSpec) -> int:
        usable = group.num_blocks - 1
        endless = group.sliding_window is not None and usable >= self._most_at_once(group.sliding_window)
        return sys.maxsize if endless else usable * self.block_size

    def _most_at_once(self, sliding_window: int) -> int:
        """Blocks that a request of any length can hold in layers with a window: what a step's first token sees before
        itself, that step's tokens and the next one's, which is scheduled before the first has come back and let
        anything go; wherever their block begins."""
        tokens = sliding_window - 1 + 2 * self._max_step_tokens
        return (tokens + self.block_size - 2) // self.block_size + 1

    def num_free(self, group: int) -> int:
        return self.pools[group].num_free

    @property
    def num_blocks(self) -> int:
        """Of all groups, without the null blocks."""
        return sum(pool.num_blocks - 1 for pool in self.pools)

    @property
    def num_used_blocks(self) -> int:
        """Of all groups, that some request holds: free ones of known contents are not among them."""
        return self.num_blocks - sum(pool.num_free for pool in self.pools)

    def usage(self) -> float:
        """The part of the fullest group's blocks in use: 0 when idle, 1 when none is left."""
        return 1.0 - min(pool.num_free / (pool.num_blocks - 1) for pool in self.pools)

    def match(self, request: Request) -> PrefixHit:
        """The longest prefix that can be shared. One token at least is left to compute: its logits are wanted.

        Of layers with a sliding window only the blocks that the next token sees are needed. What the host has is used
        if it adds enough.
        """
        if not self.prefix_caching:
            return PrefixHit(0, ((),) * len(self.pools), ())
        hit = self._match(request, on_host=False)
        if self._host:
            longer = self._match(request, on_host=True)
            if longer.num_tokens - hit.num_tokens >= self._host.min_tokens:
                return longer
        return hit

    def _match(self, request: Request, *, on_host: bool) -> PrefixHit:
        size, usable = self.block_size, len(request.token_ids) - 1
        if request.reading is not None and request.reading.num_left:
            usable = min(usable, request.reading.next)  # what is to be read must be computed
        found = [Found() for _ in self.pools]
        num_blocks = 0
        for column in range(usable // size):
            contents, end = self._contents(request, column), column + 1
            for group, each in enumerate(found):
                each.add(self._find(group, contents, on_host), self._first_seen(group, end * size))
            if any(not each.run and spec.sliding_window is None for each, spec in zip(found, self.groups, strict=True)):
                break
            if all(each.run >= end - each.first and self._can_restore(g, each.on_host) for g, each in enumerate(found)):
                num_blocks = end
        tables = []
        for group, each in enumerate(found):
            first = self._first_seen(group, num_blocks * size)
            tables.append((NULL_BLOCK,) * first + tuple(each.blocks[first:num_blocks]))
        if any(ON_HOST in table for table in tables):  # a block to copy from could be taken for one that is restored
            return PrefixHit(num_blocks * size, tuple(tables), ())
        rest = tuple(request.token_ids[num_blocks * size : min((num_blocks + 1) * size, usable)])
        key = self._key(request, num_blocks)
        starts, lengths = zip(*(pool.find_start(key, rest) for pool in self.pools), strict=True)
        more = min(lengths)
        return PrefixHit(num_blocks * size + more, tuple(tables), starts if more else ())

    def _find(self, group: int, contents: Contents, on_host: bool) -> int:
        """The block that has them; ON_HOST if only the host does and may be asked; else the null block."""
        block = self.pools[group].find(*contents)
        if block is None and on_host and self.host_pools[group].find(contents) is not None:
            return ON_HOST
        return block or NULL_BLOCK

    def _can_restore(self, group: int, num_blocks: int) -> bool:
        """Whether the step being made may have as many restores more."""
        return not num_blocks or self._step_restores[group] + num_blocks <= self._most_copies

    def can_start(self, request: Request, hit: PrefixHit, spare: int) -> bool:
        """Whether, beside the hit, all tokens known of the request fit, with `spare` blocks per group left over."""
        columns = self._columns(request.num_tokens)
        for spec, pool, table in zip(self.groups, self.pools, hit.tables, strict=True):
            passed = table.count(NULL_BLOCK)
            held = columns - passed
            if spec.sliding_window is not None:
                held = max(min(held, self._most_at_once(spec.sliding_window)), len(table) - passed)
            in_use = sum(block > NULL_BLOCK and pool.ref_count(block) > 0 for block in table)
            if held - in_use + spare > pool.num_free:
                return False
        return True

    def start(self, request: Request, hit: PrefixHit) -> Start:
        """Gives a request without blocks what was found for it just now, as its computed tokens."""
        assert not request.block_tables
        missing = self._hold(request, hit)  # before any block is taken: that may need a slot
        for pool, table in zip(self.pools, hit.tables, strict=True):
            for block in table:
                if block > NULL_BLOCK:
                    pool.share(block)
            request.block_tables.append(list(table))
        request.num_computed_tokens = hit.num_tokens
        request.num_published_blocks = hit.num_tokens // self.block_size
        restores = []
        for group, column, slot in missing:
            block = self.pools[group].take()
            self.pools[group].publish(block, *self._contents(request, column))
            request.block_tables[group][column] = block
            restores.append((group, block, slot))
        copies = []
        for group, source in enumerate(hit.starts):
            block = self.pools[group].take()  # may be the source itself, of which the copy then is none
            request.block_tables[group].append(block)
            copies.append((group, source, block))
        return Start(restores, copies)

    def _hold(self, request: Request, hit: PrefixHit) -> list[tuple[int, int, int]]:
        """(group, column, slot) of what is to be restored; the slots keep what they have until the step is complete."""
        found = []
        for group, table in enumerate(hit.tables):
            for column in [column for column, block in enumerate(table) if block == ON_HOST]:
                slot = self.host_pools[group].find(self._contents(request, column))
                assert slot is not None, "found just now"
                self.host_pools[group].hold(slot)
                self._step_restores[group] += 1
                found.append((group, column, slot))
        self.num_restores += len(found)
        return found

    def _offload(self, group: int, block: int, key: bytes, tokens: Tokens) -> None:
        """A block's contents are given up: the host keeps them if they are a full block and it has room."""
        if len(tokens) < self.block_size or self._step_offloads[group] == self._most_copies:
            return
        slot = self.host_pools[group].store((key, tokens))
        if slot is not None:
            self._offloads.append((group, block, slot))
            self._step_offloads[group] += 1
            self.num_offloads += 1

    def end_step(self) -> list[HostCopy]:
        """What has to be copied to the host before anything else that the step being made orders."""
        offloads, self._offloads = self._offloads, []
        self._step_offloads, self._step_restores = ([0] * len(self.pools) for _ in range(2))
        for host in self.host_pools:
            host.let_go()
        return offloads

    def offloads_arrived(self, offloads: Sequence[HostCopy]) -> None:
        """The step that they belong to has come back."""
        for group, _, slot in offloads:
            self.host_pools[group].arrive(slot)

    def allocate(self, request: Request, num_tokens: int) -> Allocation | None:
        """Makes room for tokens from the first that is not computed up to `num_tokens` in all.

        Not needed up to the request's `num_own_slots`, as for most tokens of a decode. Returns what changes in the
        tables; or None, with nothing changed, when some group has too few free blocks.
        """
        tables = request.block_tables or [[] for _ in self.pools]
        columns = self._columns(num_tokens)
        column = request.num_computed_tokens // self.block_size  # of the first token to be written
        for pool, table in zip(self.pools, tables, strict=True):
            if columns - len(table) + pool.is_shared(table, column) > pool.num_free:
                return None
        request.block_tables = tables
        entries: list[BlockEntry] = []
        copies: list[BlockCopy] = []
        for group, table in enumerate(tables):
            pool = self.pools[group]
            if pool.is_shared(table, column):
                source, table[column] = table[column], pool.take()
                pool.release(source)
                copies.append((group, source, table[column]))
                entries.append((group, column, table[column]))
            for new in range(len(table), columns):
                table.append(pool.take())
                entries.append((group, new, table[new]))
        request.num_own_slots = columns * self.block_size
        return Allocation(entries, copies)

    def trim(self, request: Request) -> None:
        """Gives back the blocks behind the request's computed tokens: drafts had them, and were wrong."""
        columns = self._columns(request.num_computed_tokens)
        for pool, table in zip(self.pools, request.block_tables, strict=False):
            for block in table[columns:]:
                pool.release(block)
                self.num_releases += 1
            del table[columns:]
        request.num_own_slots = min(request.num_own_slots, columns * self.block_size)

    def fork(self, request: Request, child: Request) -> None:
        """Gives `child`, which has no blocks and begins with the same computed tokens, all of the request's."""
        assert not child.block_tables
        for pool, table in zip(self.pools, request.block_tables, strict=True):
            for block in table:
                if block != NULL_BLOCK:
                    pool.share(block)
            child.block_tables.append(list(table))
        child.num_computed_tokens = request.num_computed_tokens
        child.num_published_blocks = request.num_published_blocks
        request.num_own_slots = 0  # the last block is shared, perhaps

    def publish(self, request: Request) -> None:
        """Makes the full blocks findable whose tokens are launched and known, then gives back those that no token to
        come will see."""
        if self.prefix_caching:
            known = min(request.num_computed_tokens, len(request.token_ids))
            while request.num_published_blocks < known // self.block_size:
                self._publish(request, request.num_published_blocks, known)
                request.num_published_blocks += 1
        for group in self._sliding_groups:
            table = request.block_tables[group]
            column = min(self._first_seen(group, request.num_computed_tokens), len(table)) - 1
            while column >= 0 and table[column] != NULL_BLOCK:
                self.pools[group].release(table[column])
                table[column] = NULL_BLOCK
                self.num_releases += 1
                column -= 1

    def publish_last(self, request: Request) -> None:
        """`publish`, and the partly filled block too: for a request that will write no more."""
        self.publish(request)
        known = min(request.num_computed_tokens, len(request.token_ids))
        if self.prefix_caching and known % self.block_size and request.block_tables:
            self._publish(request, known // self.block_size, known)

    def _contents(self, request: Request, column: int) -> Contents:
        """Of a full block of known tokens."""
        tokens = request.token_ids[column * self.block_size : (column + 1) * self.block_size]
        return self._key(request, column), tuple(tokens)

    def _publish(self, request: Request, column: int, known: int) -> None:
        first = column * self.block_size
        tokens, key = tuple(request.token_ids[first : min(first + self.block_size, known)]), self._key(request, column)
        for pool, table in zip(self.pools, request.block_tables, strict=True):
            if table[column] != NULL_BLOCK:
                pool.publish(table[column], key, tokens)

    def free(self, request: Request) -> None:
        """Gives back all blocks of the request; its tables are empty afterwards. Harmless when it has none."""
        for pool, table in zip(self.pools, request.block_tables, strict=False):
            for block in reversed(table):  # the tail first: the start of a sequence is worth keeping longest
                if block != NULL_BLOCK:
                    pool.release(block)
        self.num_releases += 1
        request.block_tables = []
        request.num_published_blocks = 0
        request.num_own_slots = 0

    def forget_all(self) -> None:
        """After the device's memory was lost; blocks in use keep their references.

        What has arrived on the host is as good as it was. Copies of steps that have not come back are not trusted.
        """
        for pool in self.pools:
            pool.forget_all()
        for host in self.host_pools:
            host.drop_arriving()

    def _columns(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _first_seen(self, group: int, position: int) -> int:
        """The first column that the token at `position` sees, or any after it."""
        window = self.groups[group].sliding_window
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def _key(self, request: Request, column: int) -> bytes:
        """Of all that stands before the column; its tokens are known."""
        keys = request.prefix_keys
        if not keys:
            keys.append(
                root_key(
                    adapter=request.adapter, weights_version=request.weights_version, cache_salt=request.cache_salt
                )
            )
        while len(keys) <= column:
            first = (len(keys) - 1) * self.block_size
            keys.append(next_key(keys[-1], request.token_ids[first : first + self.block_size]))
        return keys[column]

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Asserts that each block is either free or referenced, just as often as `requests`, all there are, name it."""
        references = [Counter() for _ in self.groups]
        for request in requests:
            assert len(request.block_tables) in (0, len(self.groups))
            assert request.num_own_slots in (0, sum(map(len, request.block_tables[:1])) * self.block_size)
            if request.num_computed_tokens < request.num_own_slots:
                column = request.num_computed_tokens // self.block_size
                own = [
                    pool.ref_count(table[column]) for pool, table in zip(self.pools, request.block_tables, strict=True)
                ]
                assert own == [1] * len(self.pools), f"{request.request_id} would write to blocks of {own} owners"
            for counter, table in zip(references, request.block_tables, strict=False):
                counter.update(block for block in table if block != NULL_BLOCK)
        for pool, counter in zip(self.pools, references, strict=True):
            pool.check_integrity(counter)
        for host in self.host_pools:
            host.check_integrity()
