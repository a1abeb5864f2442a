"""Sequences of tokens that are not to appear in an output, as a constraint: their last token is masked where it would
complete one. The prompt counts: a sequence may begin there. As transformers' NoBadWordsLogitsProcessor."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np


class BadWords:
    """words: of two tokens or more each; context: the prompt."""

    def __init__(self, words: Sequence[tuple[int, ...]], context: Sequence[int], vocab_size: int):
        self._by_last: dict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        for *prefix, token in words:
            self._by_last[prefix[-1]].append((tuple(prefix), token))
        self._length = max(map(len, words)) - 1
        self._recent = tuple(context[-self._length :])
        self._num_mask_words = -(-vocab_size // 32)

    def advance(self, token_id: int) -> None:
        self._recent = (*self._recent, token_id)[-self._length :]

    def mask(self) -> np.ndarray | None:
        candidates = self._by_last.get(self._recent[-1], ())
        banned = [token for prefix, token in candidates if self._recent[-len(prefix) :] == prefix]
        if not banned:
            return None
        mask = np.full(self._num_mask_words, 0xFFFFFFFF, np.uint32)
        for token in banned:
            mask[token // 32] &= ~np.uint32(1 << token % 32)
        return mask.view(np.int32)

    def forced(self) -> Sequence[int]:
        return ()

    def copy(self) -> "BadWords":
        twin = object.__new__(BadWords)
        twin.__dict__ = dict(self.__dict__)  # what advance() changes is replaced, not written to
        return twin
