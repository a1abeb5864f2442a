"""Prompt lookup against a plain search through the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlaserve.core import ngram
from xlaserve.core.ngram import NgramIndex, NgramProposer
from xlaserve.core.request import Request
from xlaserve.sampling_params import SamplingParams


class SlowLookup:
    """The same, by looking at everything each time."""

    def __init__(self, shortest: int, longest: int):
        self._lengths = range(longest, shortest - 1, -1)
        self._place: int | None = None

    def follow_one(self, text: Sequence[int]) -> None:
        """The text has one token more than at the last guess."""
        if self._place is not None:
            self._place = self._place + 1 if text[self._place] == text[-1] else None

    def guess(self, text: list[int], count: int) -> list[int]:
        if self._place is None:
            for length in (n for n in self._lengths if n <= len(text)):
                for end in range(len(text) - 1, length - 1, -1):
                    if text[end - length : end] == text[len(text) - length :] and self._place is None:
                        self._place = end
        longer = list(text)
        if self._place is not None:
            for _ in range(count):
                longer.append(longer[self._place + len(longer) - len(text)])
        return longer[len(text) :]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    prompt=st.lists(st.integers(0, 2), max_size=30),
    output=st.lists(st.integers(0, 2), max_size=30),
    lengths=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    count=st.integers(1, 9),
)
def test_guesses_are_those_of_a_plain_search(prompt, output, lengths, count):
    shortest, longest = lengths[0], sum(lengths)
    index, slow = NgramIndex(shortest, longest), SlowLookup(shortest, longest)
    text = list(prompt)
    for token in (None, *output):
        if token is not None:
            text.append(token)
            slow.follow_one(text)
        index.follow(text)
        assert index.guess(text, count) == slow.guess(text, count)


def test_the_longest_end_counts_and_of_its_places_the_last():
    index = NgramIndex(1, 2)
    text = [1, 2, 7, 1, 2, 8, 5, 2, 9, 1, 2]
    index.follow(text)
    assert index.guess(text, 3) == [8, 5, 2]


def test_a_place_that_is_right_is_kept():
    """What is copied goes on where it was, though its end was seen elsewhere since."""
    index = NgramIndex(1, 1)
    text = [1, 2, 3, 4, 2, 9, 1]
    index.follow(text)
    assert index.guess(text, 2) == [2, 3]
    text.append(2)
    index.follow(text)
    assert index.guess(text, 2) == [3, 4], "not 9, which followed the last 2"
    text.append(7)
    index.follow(text)
    assert index.guess(text, 2) == []


def test_what_repeats_itself_is_guessed_beyond_its_end():
    index = NgramIndex(2, 2)
    index.follow([0, 1, 2, 0, 1])
    assert index.guess([0, 1, 2, 0, 1], 7) == [2, 0, 1, 2, 0, 1, 2]


def request(prompt_ids: list[int]) -> Request:
    return Request("r", prompt_ids, SamplingParams(), 100_000, stop_ids=frozenset(), seed=0)


def test_a_long_prompt_is_taken_in_pieces(monkeypatch):
    monkeypatch.setattr(ngram, "MOST_INDEXED", 10)
    proposer, asked = NgramProposer(3, 2, 2), request([*range(20), 4, 5])
    assert [proposer.propose(asked) for _ in range(3)] == [[], [], [6, 7, 8, 9]]


def test_requests_have_an_index_each_and_it_goes_with_them():
    proposer = NgramProposer(2, 1, 1)
    one, other = request([1, 2, 1]), request([1, 3, 1])
    assert proposer.propose(one) == [2, 1, 2]
    assert proposer.propose(other) == [3, 1, 3]
    assert len(proposer._indices) == 2
    del one
    assert len(proposer._indices) == 1


@pytest.mark.parametrize("length", [500, 50_000])
def test_a_token_costs_the_same_however_long_the_text_is(length):
    """By the places that are looked up, not by the clock."""
    index = NgramIndex(2, 4)
    text = list(range(length))
    while index._num_indexed < length:
        index.follow(text)

    class Counted(list):
        looked_at = 0

        def __getitem__(self, key):
            Counted.looked_at += 1
            return super().__getitem__(key)

    text = Counted([*text, 7])
    index.follow(text)
    index.guess(text, 5)
    assert Counted.looked_at < 12
