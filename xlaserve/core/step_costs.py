"""What a step takes, by the size of its body, as the steps so far have shown."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from statistics import median

KEPT = 9  # steps of each size: their median is not moved by a machine that hiccups
KNOWN = 3  # from that many on
FORGOTTEN = 512  # steps without one of a size, after which it is not known any more: it may have changed


class StepCosts:
    """sizes: tokens of the bodies, ascending."""

    def __init__(self, sizes: Sequence[int]):
        self._sizes = tuple(sizes)
        self._seconds: dict[int, deque[float]] = {size: deque(maxlen=KEPT) for size in sizes}
        self._last_step = dict.fromkeys(sizes, 0)  # 0: there was none
        self._num_steps = 0

    def size_of(self, num_tokens: int) -> int:
        """Of the body that computes as many; the largest, where there is none."""
        return self._sizes[min(bisect_left(self._sizes, num_tokens), len(self._sizes) - 1)]

    def observe(self, num_tokens: int, seconds: float) -> None:
        size = self.size_of(num_tokens)
        self._num_steps += 1
        if self._last_step[size]:  # the first of its size is slower: the device prepares for it
            self._seconds[size].append(seconds)
        self._last_step[size] = self._num_steps

    def seconds(self) -> dict[int, float]:
        """By size, ascending. What is not known costs what the next smaller one does: so it will be tried, and known.

        1.0 where nothing smaller is known: only ratios count.
        """
        found, last = {}, 1.0
        for size in self._sizes:
            if self._num_steps - self._last_step[size] >= FORGOTTEN:
                self._seconds[size].clear()
            if len(self._seconds[size]) >= KNOWN:
                last = median(self._seconds[size])
            found[size] = last
        return found
