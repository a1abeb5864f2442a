"""How many blocks each layer group's KV pool gets: plain arithmetic, no device and no program."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

TYPICAL_LENGTH = 1024  # tokens of a request, prompt and output: what a pool too small for everything is divided for


@dataclass(frozen=True)
class GroupDemand:
    """One layer group."""

    bytes_per_block: int  # in all its layers together
    sliding_window: int | None  # tokens


@dataclass(frozen=True)
class KVDemand:
    """What requests need of the pools. Every pool has one block more than its requests hold: the null block."""

    groups: tuple[GroupDemand, ...]
    block_size: int  # tokens
    max_num_seqs: int
    max_num_batched_tokens: int

    def blocks(self, group: GroupDemand, rows: int, length: int) -> int:
        """That `rows` requests of `length` tokens hold at most.

        With a sliding window a row holds what its next token sees and, until they are computed, the tokens of the two
        steps that may be under way; wherever their blocks begin, that opens two blocks beyond the window.
        """
        whole = rows * -(-length // self.block_size)
        if group.sliding_window is None:
            return whole
        tokens = rows * (group.sliding_window + 2 * self.block_size) + 2 * self.max_num_batched_tokens
        return min(whole, -(-tokens // self.block_size))

    def bytes_of(self, num_blocks: tuple[int, ...]) -> int:
        """Of pools with `num_blocks` per group, null blocks included."""
        return sum(n * group.bytes_per_block for n, group in zip(num_blocks, self.groups, strict=True))

    def num_blocks(self, rows: int, length: int, longest: int = 0) -> tuple[int, ...]:
        """Per group, for `rows` requests of `length` tokens, or for a single one of `longest`."""
        return tuple(1 + max(self.blocks(group, rows, length), self.blocks(group, 1, longest)) for group in self.groups)

    def most(self, max_model_len: int) -> tuple[int, ...]:
        """All that can be in use at once."""
        return self.num_blocks(self.max_num_seqs, max_model_len)

    def given(self, num_blocks: int, max_model_len: int) -> tuple[int, ...]:
        """`num_blocks` for every group that sees all, and at most that for the others: they take what they need."""
        most = self.most(max_model_len)
        return tuple(
            num_blocks if group.sliding_window is None else min(num_blocks, needed)
            for group, needed in zip(self.groups, most, strict=True)
        )

    def longest(self, budget: int, limit: int) -> int:
        """Tokens, up to `limit`, of the longest request that pools of `budget` bytes can hold; 0: not one block."""
        return _largest(limit, lambda length: self.bytes_of(self.num_blocks(1, length)) <= budget)

    def divide(self, budget: int, max_model_len: int) -> tuple[int, ...]:
        """Blocks per group for `budget` bytes, which hold a request of `max_model_len` (see `longest`).

        Every group is sized for the same requests: all rows at the greatest length they can have together or, if that
        is under TYPICAL_LENGTH, as many rows of that length as fit. What that leaves goes to the full groups.
        """

        def fits(rows: int, length: int) -> bool:
            return self.bytes_of(self.num_blocks(rows, length, max_model_len)) <= budget

        length = min(TYPICAL_LENGTH, max_model_len)
        rows = _largest(self.max_num_seqs, lambda rows: fits(rows, length))
        if rows == self.max_num_seqs:
            length = _largest(max_model_len, lambda length: fits(rows, length))
        num_blocks = self.num_blocks(rows, length, max_model_len)
        growing = [group.sliding_window is None for group in self.groups]
        if not any(growing):
            growing = [True] * len(self.groups)
        step = sum(group.bytes_per_block for group, grows in zip(self.groups, growing, strict=True) if grows)
        more = (budget - self.bytes_of(num_blocks)) // step
        return tuple(n + more * grows for n, grows in zip(num_blocks, growing, strict=True))


@dataclass(frozen=True)
class PoolSize:
    """The pools' sizes, and what they hold."""

    demand: KVDemand
    num_blocks: tuple[int, ...]  # per layer group, null blocks included

    @property
    def num_bytes(self) -> int:
        return self.demand.bytes_of(self.num_blocks)

    @property
    def num_tokens(self) -> int:
        """That fit in the groups that see all; if there is none, in the others, as though no window passed."""
        groups = list(zip(self.demand.groups, self.num_blocks, strict=True))
        full = [n for group, n in groups if group.sliding_window is None]
        return (min(full or self.num_blocks) - 1) * self.demand.block_size

    def holds(self, rows: int, length: int) -> bool:
        """Whether `rows` requests of `length` tokens fit at once."""
        needed = self.demand.num_blocks(rows, length)
        return all(want <= have for want, have in zip(needed, self.num_blocks, strict=True))

    def longest(self, limit: int) -> int:
        """Tokens, up to `limit`, of the longest request that fits."""
        return _largest(limit, lambda length: self.holds(1, length))

    def requests(self, length: int) -> int:
        """How many requests of `length` tokens fit at once, rows or no rows."""
        return _largest(max(self.num_blocks), lambda rows: self.holds(rows, length))


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 0 to `limit` that fits, if all below one that fits do too."""
    return bisect_right(range(1, limit + 1), False, key=lambda number: not fits(number))
