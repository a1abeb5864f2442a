"""One layer group's blocks: which are free, how often each is referenced, and whose contents are known.

Contents are known by what stands before them, a key (`prefix_keys.py`), and by their own tokens, which are compared
whenever they are looked for. A block nobody references stays findable until it is needed for something else: blocks of
unknown contents go first, then the least recently used.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable

NULL_BLOCK = 0  # where padding writes go: never handed out

Tokens = tuple[int, ...]


class BlockPool:
    """All operations are O(1) in blocks; looking for contents costs a binary search among those with the same key."""

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes, Tokens], None] | None = None):
        """num_blocks: the null block included. on_evict(block, key, tokens): a free block's contents are given up."""
        assert num_blocks >= 2, "a pool needs a block besides the null block"
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self.num_known = 0  # blocks whose contents are known, free or not
        self.num_shared = 0  # references beyond each block's first: as many blocks would be needed without sharing
        self._unknown = deque(range(NULL_BLOCK + 1, num_blocks))  # free, contents unknown
        self._known: OrderedDict[int, None] = OrderedDict()  # free, contents known; least recently used first
        self._ref_counts = [0] * num_blocks
        self._contents: list[tuple[bytes, Tokens] | None] = [None] * num_blocks
        self._by_key: dict[bytes, list[tuple[Tokens, int]]] = {}  # (tokens, block) sorted by tokens

    @property
    def num_free(self) -> int:
        return len(self._unknown) + len(self._known)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def is_shared(self, table: list[int], column: int) -> bool:
        """Whether the table has a block there to which others refer too."""
        return column < len(table) and self._ref_counts[table[column]] > 1

    def is_known(self, block: int) -> bool:
        """Whether the block is found by its contents, in use or free."""
        return self._contents[block] is not None

    def take(self) -> int:
        """A free block, for one reference; what it held is forgotten. There must be one."""
        if self._unknown:
            block = self._unknown.popleft()
        else:
            block, _ = self._known.popitem(last=False)
            contents = self._contents[block]
            if self._on_evict and contents:
                self._on_evict(block, *contents)
            self.forget(block)
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One reference more, to a block in use or to a free one of known contents."""
        if self._ref_counts[block]:
            self.num_shared += 1
        else:
            del self._known[block]
        self._ref_counts[block] += 1

    def release(self, block: int) -> None:
        """One reference less."""
        self._ref_counts[block] -= 1
        if self._ref_counts[block]:
            self.num_shared -= 1
        elif self._contents[block] is None:
            self._unknown.append(block)
        else:
            self._known[block] = None

    def publish(self, block: int, key: bytes, tokens: Tokens) -> None:
        """Makes a block in use findable: `tokens` stand in it, from its start, after the prefix of `key`.

        They must stay there: only what stands behind them may be written. Contents that another block has are not
        published again.
        """
        siblings = self._by_key.setdefault(key, [])
        place = bisect_left(siblings, (tokens,))
        if place < len(siblings) and siblings[place][0] == tokens:
            return
        siblings.insert(place, (tokens, block))
        self.forget(block)  # fewer of the same tokens
        self._contents[block] = (key, tokens)
        self.num_known += 1

    def find(self, key: bytes, tokens: Tokens) -> int | None:
        """The block that holds just these tokens after this prefix."""
        siblings = self._by_key.get(key, ())
        place = bisect_left(siblings, (tokens,))
        return siblings[place][1] if place < len(siblings) and siblings[place][0] == tokens else None

    def find_start(self, key: bytes, tokens: Tokens) -> tuple[int, int]:
        """(a block, how many of `tokens` it begins with after this prefix), the most there are; (NULL_BLOCK, 0)."""
        siblings = self._by_key.get(key, ())
        place = bisect_left(siblings, (tokens,))
        near = siblings[max(0, place - 1) : place + 1]  # in sorted order, who shares most stands beside it
        found = [(_num_common(tokens, theirs), block) for theirs, block in near]
        length, block = max(found, default=(0, NULL_BLOCK))
        return (block, length) if length else (NULL_BLOCK, 0)

    def forget(self, block: int) -> None:
        """The block's contents are about to change, or lost. Harmless when unknown."""
        contents = self._contents[block]
        if contents is None:
            return
        key, tokens = contents
        siblings = self._by_key[key]
        if len(siblings) == 1:
            del self._by_key[key]
        else:
            del siblings[bisect_left(siblings, (tokens,))]
        self._contents[block] = None
        self.num_known -= 1

    def forget_all(self) -> None:
        """After the device's memory was lost."""
        for block in range(NULL_BLOCK + 1, self.num_blocks):
            self.forget(block)
        self._unknown.extend(self._known)
        self._known.clear()

    def check_integrity(self, references: dict[int, int]) -> None:
        """Asserts that all of this agrees, with `references` as all the references there are; for tests."""
        unknown, known = set(self._unknown), set(self._known)
        assert len(unknown) == len(self._unknown), "a block is free twice"
        assert not unknown & known, "a block is free twice"
        assert NULL_BLOCK not in unknown | known, "the null block is free"
        assert NULL_BLOCK not in references, "the null block was handed out"
        for block in range(NULL_BLOCK + 1, self.num_blocks):
            count, contents = self._ref_counts[block], self._contents[block]
            assert count == references.get(block, 0), f"block {block} counts {count}, has {references.get(block, 0)}"
            free = block in unknown or block in known
            assert (count == 0) == free, f"block {block} counts {count}, free: {free}"
            assert count or (block in known) == (contents is not None), f"block {block} is free, with {contents}"
            assert contents is None or self.find(*contents) == block, f"block {block} is not found by {contents}"
        assert self.num_known == sum(contents is not None for contents in self._contents)
        assert self.num_known == sum(map(len, self._by_key.values()))
        assert self.num_shared == sum(max(0, count - 1) for count in self._ref_counts)


def _num_common(a: Tokens, b: Tokens) -> int:
    """How many tokens both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
