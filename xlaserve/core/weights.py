"""Which sets of weights there are, by version: requests name the one that computes them. Knows no tensor."""

from collections import deque
from collections.abc import Iterable, Sequence


class WeightVersions:
    """One version, but for the time that a swap takes: then steps with the old and with the new ones take turns."""

    def __init__(self):
        self.newest = 0  # what requests get that have not begun
        self._versions = deque([0])

    def __contains__(self, version: int) -> bool:
        return version in self._versions

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, version: int) -> None:
        """Newer ones are there, and are what newcomers get."""
        assert version > self.newest
        self.newest = version
        self._versions.append(version)

    def unused(self, used: Iterable[int]) -> list[int]:
        """Those that are neither the newest nor `used`."""
        if len(self._versions) == 1:
            return []
        return sorted(set(self._versions) - set(used) - {self.newest})

    def remove(self, version: int) -> None:
        self._versions.remove(version)

    def turns(self) -> Sequence[int]:
        """For the next step: whose turn it is, then who takes it where that one has nothing to compute."""
        self._versions.rotate(-1)
        return tuple(self._versions)
