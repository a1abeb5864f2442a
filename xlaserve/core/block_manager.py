"""The block tables of all requests: which block of each layer group's pool holds which of their tokens.

Each layer group has a pool of its own, and so a block table of its own per request; all share one block size. Block 0
of every pool is the null block; in a table it means "no block": in layers with a sliding window, one that has passed.

Blocks are shared by reference count: by requests that begin alike (`match`, `start`) and by forks (`fork`). Full blocks
are never written again. A partly filled one is: whoever is about to, while others refer to it, gets a copy first.

Knows no tensor and no scheduling. What it orders is carried out on the device in the order in which steps are launched:
so blocks may be given back, published and copied while steps that use them are still under way.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xlaserve.core.block_pool import NULL_BLOCK, BlockPool
from xlaserve.core.prefix_keys import next_key, root_key
from xlaserve.core.request import Request

BlockEntry = tuple[int, int, int]  # (group, column, block): column `column` of the group's table now names `block`
BlockCopy = tuple[int, int, int]  # (group, source, destination)


@dataclass(frozen=True)
class GroupSpec:
    """One layer group's pool."""

    num_blocks: int  # the null block included
    sliding_window: int | None = None  # tokens, the query's own included


class PrefixHit(NamedTuple):
    """What the pools hold of a request's tokens, from its start without a gap."""

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]  # per group, whole blocks only
    starts: tuple[int, ...]  # per group, a block that begins with the rest of num_tokens; empty if there is no rest


class Allocation(NamedTuple):
    entries: Sequence[BlockEntry] = ()
    copies: Sequence[BlockCopy] = ()  # to be made before anything is written


_NOTHING = Allocation()  # the answer to most calls: a decode's token fits into the block before it


class BlockManager:
    """All operations are O(1) per block; a request's tables live in `Request.block_tables`, written only here.

    max_step_tokens: that one request may get in a step.
    """

    def __init__(
        self, groups: Sequence[GroupSpec], block_size: int, *, max_step_tokens: int, prefix_caching: bool = True
    ):
        assert groups
        assert block_size >= 1
        self.groups = tuple(groups)
        self.block_size = block_size  # tokens
        self.pools = tuple(BlockPool(group.num_blocks) for group in groups)
        self.prefix_caching = prefix_caching
        self.num_releases = 0  # how often blocks were given back: tells whether waiting can have helped
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

    def usage(self) -> float:
        """The part of the fullest group's blocks in use: 0 when idle, 1 when none is left."""
        return 1.0 - min(pool.num_free / (pool.num_blocks - 1) for pool in self.pools)

    def internal_waste(self, running: Iterable[Request]) -> float:
        """The share of the slots in used blocks that hold no token; `running`: all requests that have blocks.

        A token counts once its step is launched. Empty slots are those at the end of each table.
        """
        num_used = sum(pool.num_blocks - 1 - pool.num_free for pool in self.pools)
        if not num_used:
            return 0.0
        tables = [(len(request.block_tables[0]), request.num_computed_tokens) for request in running]
        num_empty = sum([columns * self.block_size - num_tokens for columns, num_tokens in tables])
        return num_empty * len(self.pools) / (num_used * self.block_size)

    def match(self, request: Request) -> PrefixHit:
        """The longest prefix that can be shared. One token at least is left to compute: its logits are wanted.

        Of layers with a sliding window only the blocks that the next token sees are needed.
        """
        empty = PrefixHit(0, ((),) * len(self.pools), ())
        if not self.prefix_caching:
            return empty
        size, usable = self.block_size, len(request.token_ids) - 1
        found: list[list[int]] = [[] for _ in self.pools]  # by column; the null block where there is none
        unbroken = [0] * len(self.pools)  # columns found one after the other, up to the present
        num_blocks = 0
        for column in range(usable // size):
            key, tokens = self._key(request, column), tuple(request.token_ids[column * size : (column + 1) * size])
            for group, pool in enumerate(self.pools):
                block = pool.find(key, tokens)
                found[group].append(block or NULL_BLOCK)
                unbroken[group] = unbroken[group] + 1 if block else 0
            if any(not run and spec.sliding_window is None for run, spec in zip(unbroken, self.groups, strict=True)):
                break
            end = column + 1
            if all(run >= end - self._first_seen(group, end * size) for group, run in enumerate(unbroken)):
                num_blocks = end
        tables = []
        for group, blocks in enumerate(found):
            first = self._first_seen(group, num_blocks * size)
            tables.append((NULL_BLOCK,) * first + tuple(blocks[first:num_blocks]))
        rest = tuple(request.token_ids[num_blocks * size : min((num_blocks + 1) * size, usable)])
        key = self._key(request, num_blocks)
        starts, lengths = zip(*(pool.find_start(key, rest) for pool in self.pools), strict=True)
        more = min(lengths)
        return PrefixHit(num_blocks * size + more, tuple(tables), starts if more else ())

    def can_start(self, request: Request, hit: PrefixHit, spare: int) -> bool:
        """Whether, beside the hit, all tokens known of the request fit, with `spare` blocks per group left over."""
        columns = self._columns(request.num_tokens)
        for spec, pool, table in zip(self.groups, self.pools, hit.tables, strict=True):
            shared = [block for block in table if block != NULL_BLOCK]
            held = columns - table.count(NULL_BLOCK)
            if spec.sliding_window is not None:
                held = max(min(held, self._most_at_once(spec.sliding_window)), len(shared))
            in_use = sum(pool.ref_count(block) > 0 for block in shared)
            if held - in_use + spare > pool.num_free:
                return False
        return True

    def start(self, request: Request, hit: PrefixHit) -> list[BlockCopy]:
        """Gives a request without blocks what was found for it just now, as its computed tokens."""
        assert not request.block_tables
        for pool, table in zip(self.pools, hit.tables, strict=True):
            for block in table:
                if block != NULL_BLOCK:
                    pool.share(block)
            request.block_tables.append(list(table))
        request.num_computed_tokens = hit.num_tokens
        request.num_published_blocks = hit.num_tokens // self.block_size
        copies = []
        for group, source in enumerate(hit.starts):
            block = self.pools[group].take()  # may be the source itself, of which the copy then is none
            request.block_tables[group].append(block)
            copies.append((group, source, block))
        return copies

    def allocate(self, request: Request, num_tokens: int) -> Allocation | None:
        """Makes room for tokens from the first that is not computed up to `num_tokens` in all.

        Returns what changes in the tables; or None, with nothing changed, when some group has too few free blocks.
        """
        tables = request.block_tables or [[] for _ in self.pools]
        columns = -(-num_tokens // self.block_size)
        column = request.num_computed_tokens // self.block_size  # of the first token to be written
        # Tables are equally long, and a block that is not full is shared in all groups or in none: one tells of all.
        if column < columns == len(tables[0]) and self.pools[0].ref_count(tables[0][column]) == 1:
            return _NOTHING
        shared = [
            column < len(table) and pool.ref_count(table[column]) > 1
            for pool, table in zip(self.pools, tables, strict=True)
        ]
        for pool, table, copied in zip(self.pools, tables, shared, strict=True):
            if columns - len(table) + copied > pool.num_free:
                return None
        request.block_tables = tables
        entries: list[BlockEntry] = []
        copies: list[BlockCopy] = []
        for group, (pool, table) in enumerate(zip(self.pools, tables, strict=True)):
            if shared[group]:
                source, table[column] = table[column], pool.take()
                pool.release(source)
                copies.append((group, source, table[column]))
                entries.append((group, column, table[column]))
            for new in range(len(table), columns):
                table.append(pool.take())
                entries.append((group, new, table[new]))
        return Allocation(entries, copies)

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

    def forget_all(self) -> None:
        """After the device's memory was lost; blocks in use keep their references."""
        for pool in self.pools:
            pool.forget_all()

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
            for counter, table in zip(references, request.block_tables, strict=False):
                counter.update(block for block in table if block != NULL_BLOCK)
        for pool, counter in zip(self.pools, references, strict=True):
            pool.check_integrity(counter)
