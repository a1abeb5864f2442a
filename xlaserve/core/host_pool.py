"""One layer group's slots in host memory: copies of full blocks that the device had no room for any longer.

A slot is reserved when the copy is ordered, and findable once the step that made it has come back. What the device gets
back stays here too: when its block is needed for something else again, nothing has to be copied.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass

from xlaserve.core.block_pool import Tokens

Contents = tuple[bytes, Tokens]  # the key of the prefix before the block, and the block's own tokens


@dataclass(frozen=True)
class HostTier:
    """How much host memory there is, and when it pays."""

    num_slots: tuple[int, ...]  # per layer group, a block each
    min_tokens: int  # of a prefix that the host adds to what the device has: fewer are computed anew
    max_step_blocks: int  # of each group, offloaded in one step at most, and restored


class HostPool:
    """All operations are O(1). A slot is unused, arriving, known (least recently used first), or known and held."""

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        self._unused = deque(range(num_slots))
        self._arriving: set[int] = set()
        self._known: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, None] = {}  # until the step that reads them is complete
        self._contents: dict[int, Contents] = {}
        self._by_contents: dict[Contents, int] = {}

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._unused)

    def find(self, contents: Contents) -> int | None:
        """The slot with these contents, if they have arrived."""
        slot = self._by_contents.get(contents)
        return None if slot in self._arriving else slot

    def store(self, contents: Contents) -> int | None:
        """A slot to copy them to, the least recently used; None if they are here or no slot can be had."""
        slot = self._by_contents.get(contents)
        if slot is not None:
            if slot in self._known:
                self._known.move_to_end(slot)
            return None
        if self._unused:
            slot = self._unused.popleft()
        elif self._known:
            slot, _ = self._known.popitem(last=False)
            del self._by_contents[self._contents[slot]]
        else:
            return None
        self._arriving.add(slot)
        self._contents[slot] = contents
        self._by_contents[contents] = slot
        return slot

    def arrive(self, slot: int) -> None:
        """The step that copied to it has come back."""
        self._arriving.remove(slot)
        self._known[slot] = None

    def hold(self, slot: int) -> None:
        """The step being made reads the slot: nothing else is copied to it. Harmless twice."""
        self._known.pop(slot, None)
        self._held[slot] = None

    def let_go(self) -> None:
        """The step is complete: what it reads is as if it had been read, what it held first the most recently."""
        self._known.update(dict.fromkeys(reversed(self._held)))
        self._held.clear()

    def drop_arriving(self) -> None:
        """The copies under way are lost."""
        for slot in self._arriving:
            del self._by_contents[self._contents.pop(slot)]
        self._unused.extend(self._arriving)
        self._arriving.clear()

    def check_integrity(self) -> None:
        """Asserts that all of this agrees; for tests, between two steps."""
        parts = [set(self._unused), self._arriving, set(self._known)]
        assert not self._held, "a step was not completed"
        assert len(self._unused) + len(self._arriving) + len(self._known) == self.num_slots
        assert set.union(*parts) == set(range(self.num_slots)), "a slot is lost"
        assert self._contents.keys() == self._arriving | self._known.keys()
        assert self._by_contents == {contents: slot for slot, contents in self._contents.items()}
