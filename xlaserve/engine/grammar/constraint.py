"""A compiled grammar as a request's constraint: masks are made on other threads, ahead of when they are asked for."""

from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np
from llguidance import LLMatcher

from xlaserve.core.constraint import ConstraintFailed

MASK_SECONDS = 10.0  # LIMITS keep a mask under half a second; a thread that hangs all the same costs its own request


def make_mask(matcher: LLMatcher, num_words: int, eos_mask: np.ndarray) -> np.ndarray:
    """int32 [num_words]. Raises ConstraintFailed where the grammar, or its size, lets nothing come next."""
    if matcher.is_stopped() and not matcher.is_error():
        return eos_mask  # complete: nothing but EOS
    mask = np.zeros(num_words, np.int32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        raise ConstraintFailed(f"The output's grammar has come to an end: {_reason(matcher)}")
    return mask


def _reason(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().partition("<state>")[0].split())[:200]


class GrammarConstraint:
    """Once the grammar is complete it allows nothing but EOS.

    more: EOS is allowed only then, and not where the grammar could end but could go on, too.
    """

    def __init__(
        self, matcher: LLMatcher, first_mask: np.ndarray, pool: ThreadPoolExecutor, eos_ids: Set[int], *, more: bool
    ):
        self._matcher = matcher
        self._pool = pool
        self._eos_ids = eos_ids
        self._eos_mask = eos_mask(eos_ids, len(first_mask))
        self._more = more
        self._mask: np.ndarray | Future[np.ndarray] = first_mask

    def advance(self, token_id: int) -> None:
        if token_id not in self._eos_ids:
            self._mask = self._pool.submit(self._consume, token_id)

    def _consume(self, token_id: int) -> np.ndarray:
        if not self._matcher.consume_token(token_id):
            raise ConstraintFailed(f"The output does not keep to its grammar: {_reason(self._matcher)}")
        return make_mask(self._matcher, len(self._eos_mask), self._eos_mask)

    def mask(self) -> np.ndarray:
        if isinstance(self._mask, Future):
            try:
                self._mask = self._mask.result(timeout=MASK_SECONDS)
            except FutureTimeoutError:
                raise ConstraintFailed("The output's grammar takes too long.") from None
        if self._more and (longer := self._mask & ~self._eos_mask).any():
            return longer
        return self._mask

    def copy(self) -> "GrammarConstraint":
        mask = self._mask.result(timeout=MASK_SECONDS) if isinstance(self._mask, Future) else self._mask
        return GrammarConstraint(self._matcher.deep_copy(), mask, self._pool, self._eos_ids, more=self._more)


def eos_mask(eos_ids: Set[int], num_words: int) -> np.ndarray:
    """int32 [num_words], with the bits of EOS only."""
    bits = np.zeros(32 * num_words, bool)
    bits[list(eos_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
