"""What a request's prefix is found in: blocks of the pools, and of the host."""

from typing import NamedTuple

from xlaserve.core.block_pool import NULL_BLOCK

ON_HOST = -1  # in the tables of a hit: a block to be restored


class PrefixHit(NamedTuple):
    """What the pools hold of a request's tokens, from its start without a gap."""

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]  # per group, whole blocks only; ON_HOST where the host has them
    starts: tuple[int, ...]  # per group, a block that begins with the rest of num_tokens; empty if there is no rest


class Found:
    """What one group has of a prefix, column by column."""

    __slots__ = ("blocks", "first", "on_host", "run")

    def __init__(self):
        self.blocks: list[int] = []  # by column; the null block where there is none
        self.run = 0  # columns found one after the other, up to the present
        self.first = 0  # column that a token after the present one sees
        self.on_host = 0  # of the columns from there on

    def add(self, block: int, first: int) -> None:
        self.blocks.append(block)
        self.run = self.run + 1 if block != NULL_BLOCK else 0
        self.on_host += (block == ON_HOST) - self.blocks[self.first : first].count(ON_HOST)
        self.first = first
