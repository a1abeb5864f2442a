"""Sequences that are not to appear, against a plain search of the whole context."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xlaserve.core.bad_words import BadWords

VOCAB = 37
tokens = st.integers(0, 5)


@settings(deadline=None, derandomize=True)
@given(
    words=st.lists(st.lists(tokens, min_size=2, max_size=4).map(tuple), min_size=1, max_size=6),
    prompt=st.lists(tokens, min_size=1, max_size=6),
    output=st.lists(tokens, max_size=8),
)
def test_a_token_is_masked_where_it_would_complete_a_word(words, prompt, output):
    constraint = BadWords(words, prompt, VOCAB)
    for count in range(len(output) + 1):
        context = (*prompt, *output[:count])
        banned = {word[-1] for word in words if context[-len(word) + 1 :] == word[:-1]}
        for each in (constraint, constraint.copy()):
            mask = each.mask()
            if not banned:
                assert mask is None
            else:
                assert mask is not None
                assert mask.dtype == np.int32
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=VOCAB)
                assert np.flatnonzero(bits == 0).tolist() == sorted(banned)
        if count < len(output):
            twin = constraint.copy()
            twin.advance(5 - output[count])
            constraint.advance(output[count])
