"""Hands out KV blocks. Owns which block is free and how often each is referenced; knows no tensor and no scheduling.

Each layer group has a pool of its own, and so a block table of its own per request; all share one block size. Block 0
of every pool is the null block, where padding writes go: it is never handed out, and an entry of 0 means "no block".

An allocation is reported as (group, column, block) entries, which may also *replace* what a table held. That is the
room for what comes later: a copied block after a fork, a shared block of a known prefix (the request carries its token
ids), the null block once a sliding window has passed.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xlaserve.core.request import Request

NULL_BLOCK = 0

BlockEntry = tuple[int, int, int]  # (group, column, block): column `column` of the group's table now names `block`


@dataclass(frozen=True)
class GroupSpec:
    """One layer group's pool."""

    num_blocks: int  # the null block included


class BlockManager:
    """Allocates and frees in O(1) per block; a request's tables live in `Request.block_tables`, written only here."""

    def __init__(self, groups: Sequence[GroupSpec], block_size: int):
        assert groups
        assert block_size >= 1
        assert all(group.num_blocks >= 2 for group in groups), "a pool needs a block besides the null block"
        self.groups = tuple(groups)
        self.block_size = block_size  # tokens
        # Oldest freed first: the order in which cached contents will be given up.
        self._free = [deque(range(NULL_BLOCK + 1, group.num_blocks)) for group in groups]
        self._ref_counts = [[0] * group.num_blocks for group in groups]

    @property
    def capacity(self) -> int:
        """Tokens that one request can hold when it is alone."""
        return (min(group.num_blocks for group in self.groups) - 1) * self.block_size

    def num_free(self, group: int) -> int:
        return len(self._free[group])

    def usage(self) -> float:
        """The part of the fullest group's blocks in use: 0 when idle, 1 when none is left."""
        shares = (len(free) / (group.num_blocks - 1) for free, group in zip(self._free, self.groups, strict=True))
        return 1.0 - min(shares)

    def can_allocate(self, request: Request, num_tokens: int, spare: int = 0) -> bool:
        """Whether the request's tables can grow to `num_tokens` with `spare` blocks per group left over."""
        needed = -(-num_tokens // self.block_size) + spare
        tables = request.block_tables or [()] * len(self.groups)
        return all(needed - len(table) <= len(free) for table, free in zip(tables, self._free, strict=True))

    def allocate(self, request: Request, num_tokens: int) -> Sequence[BlockEntry] | None:
        """Makes the request's tables long enough for `num_tokens` tokens in all.

        Returns the new entries; or None, with nothing changed, when some group has too few free blocks.
        """
        needed = -(-num_tokens // self.block_size)
        tables = request.block_tables
        if tables and all(len(table) >= needed for table in tables):
            return ()
        if not self.can_allocate(request, num_tokens):
            return None
        if not tables:
            tables.extend([] for _ in self.groups)
        entries: list[BlockEntry] = []
        for group, table in enumerate(tables):
            free, ref_counts = self._free[group], self._ref_counts[group]
            for column in range(len(table), needed):
                block = free.popleft()
                ref_counts[block] = 1
                table.append(block)
                entries.append((group, column, block))
        return entries

    def free(self, request: Request) -> None:
        """Gives back all blocks of the request; its tables are empty afterwards. Harmless when it has none."""
        for group, table in enumerate(request.block_tables):
            free, ref_counts = self._free[group], self._ref_counts[group]
            for block in reversed(table):  # the tail first: the start of a sequence is worth keeping longest
                ref_counts[block] -= 1
                if ref_counts[block] == 0:
                    free.append(block)
        request.block_tables.clear()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Asserts that each block is either free or referenced, just as often as `requests`, all there are, name it."""
        references = [Counter() for _ in self.groups]
        for request in requests:
            assert len(request.block_tables) in (0, len(self.groups))
            for counter, table in zip(references, request.block_tables, strict=False):
                counter.update(table)
        for group, (spec, counter) in enumerate(zip(self.groups, references, strict=True)):
            free = set(self._free[group])
            assert len(free) == len(self._free[group]), f"group {group}: a block is free twice"
            assert NULL_BLOCK not in free, f"group {group}: the null block is free"
            assert counter[NULL_BLOCK] == 0, f"group {group}: the null block was handed out"
            for block in range(NULL_BLOCK + 1, spec.num_blocks):
                count = self._ref_counts[group][block]
                assert count == counter[block], f"group {group}: block {block} counts {count}, has {counter[block]}"
                assert (count == 0) == (block in free), (
                    f"group {group}: block {block} counts {count}, free: {block in free}"
                )
