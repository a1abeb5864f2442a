"""Drafts from the request's own text: what followed the last time that its end was seen. Prompt lookup, by n-grams."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from xlaserve.core.request import Request

MOST_INDEXED = 4096  # tokens in one step: a long prompt is not to hold up the others


class NgramIndex:
    """Of one growing text: where each run of `shortest` to `longest` tokens was met last. O(1) per token."""

    def __init__(self, shortest: int, longest: int):
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}  # by run, the place after it
        self._num_indexed = 0  # tokens of which some token after them is known
        self._place: int | None = None  # the text goes on as it does from here, as far as it has been followed

    def follow(self, token_ids: Sequence[int]) -> None:
        """Takes what the text has now, longer than the last time or not: at most MOST_INDEXED tokens at once."""
        ends, lengths = self._ends, self._lengths
        end = min(len(token_ids), self._num_indexed + MOST_INDEXED)
        for place in range(self._num_indexed, end):
            if self._place is not None:
                self._place = self._place + 1 if token_ids[self._place] == token_ids[place] else None
            for length in lengths:
                if length <= place:
                    ends[tuple(token_ids[place - length : place])] = place
        self._num_indexed = end

    def guess(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens; none where the end of the text is new to it, or not all of it was followed yet.

        A place that has been right so far is kept: of what is copied, the next piece follows the last one.
        """
        num_tokens = len(token_ids)
        if self._num_indexed < num_tokens:
            return []
        if self._place is None:
            ends = (self._ends.get(tuple(token_ids[num_tokens - n :])) for n in self._lengths if n <= num_tokens)
            self._place = next((end for end in ends if end is not None), None)
        if self._place is None:
            return []
        drafts = list(token_ids[self._place : self._place + count])
        period = num_tokens - self._place
        while len(drafts) < count:  # the text ends: what it has repeated it will repeat
            drafts.append(drafts[len(drafts) - period])
        return drafts


class NgramProposer:
    """prompt_lookup_min, prompt_lookup_max: the shortest and the longest end of the text that is looked up."""

    def __init__(self, num_tokens: int, prompt_lookup_min: int, prompt_lookup_max: int):
        assert 1 <= prompt_lookup_min <= prompt_lookup_max
        self._num_tokens = num_tokens
        self._lengths = prompt_lookup_min, prompt_lookup_max
        self._indices: WeakKeyDictionary[Request, NgramIndex] = WeakKeyDictionary()

    def propose(self, request: Request) -> list[int]:
        """Up to `num_tokens` + 1 tokens that may come after those that have come back: one may be in flight."""
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex(*self._lengths)
        index.follow(request.token_ids)
        return index.guess(request.token_ids, self._num_tokens + 1)
