"""How fast requests end just now, for telling those that are refused when to come back. No clock of its own."""

import math
from collections import deque

MIN_SECONDS, MAX_SECONDS = 1, 60
_WINDOW = 32  # ends


class CompletionRate:
    """Over the last `_WINDOW` ends since the engine last had nothing to do."""

    def __init__(self, now: float):
        self._times = deque([now], maxlen=_WINDOW + 1)

    def restart(self, now: float) -> None:
        """Work begins after a rest, which says nothing of how fast it goes."""
        self._times.clear()
        self._times.append(now)

    def observe_end(self, now: float) -> None:
        self._times.append(now)

    def seconds_until(self, num_ends: int, now: float) -> int:
        """When `num_ends` more will have ended, at the present rate: from MIN_SECONDS to MAX_SECONDS.

        With none so far, one is taken to end just now.
        """
        seconds = num_ends * (now - self._times[0]) / max(1, len(self._times) - 1)
        return min(max(MIN_SECONDS, math.ceil(seconds)), MAX_SECONDS)
