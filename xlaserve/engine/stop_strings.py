"""Finds stop strings in a stream of text, wherever its pieces are cut."""

from collections.abc import Callable, Sequence


def _nothing() -> str:
    return ""


class StopStrings:
    """Returns text only once it can no longer become part of a stop string."""

    def __init__(self, stops: Sequence[str], *, include: bool = False):
        """include: the stop string itself is part of the text."""
        self._stops = stops
        self._include = include
        self._held = ""  # its end may be the beginning of a stop string
        self.found: str | None = None  # the stop string that ended the text

    def push(self, text: str, ahead: Callable[[], str] = _nothing) -> str:
        """The text that is now certain; with `found` set, the last of it, up to the stop string's start or end.

        `ahead` gives text that will come next if nothing else does: a stop string may end in it. Of several stop
        strings the one that begins first wins, of several that begin at once the shortest.
        """
        if not self._stops:
            return text
        self._held += text
        seen = self._held + ahead()
        matches = [(at, len(stop), stop) for stop in self._stops if (at := seen.find(stop)) >= 0]
        if matches:
            at, length, self.found = min(matches)
            return seen[: at + length] if self._include else seen[:at]
        certain = len(self._held) - self._unsure()
        certain_text, self._held = self._held[:certain], self._held[certain:]
        return certain_text

    def finish(self) -> str:
        """The text still held back: it turned out to be no stop string."""
        text, self._held = self._held, ""
        return text

    def _unsure(self) -> int:
        """Characters at the end that are the beginning of some stop string."""
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if self._begins_stop(self._held[-n:])), 0)

    def _begins_stop(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)
