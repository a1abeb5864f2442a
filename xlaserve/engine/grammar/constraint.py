"""A compiled grammar as a request's constraint: masks are made on other threads, ahead of when they are asked for."""

import time
from collections.abc import Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np
from llguidance import LLMatcher

from xlaserve.core.constraint import ConstraintFailed, only_token

MASK_SECONDS = 10.0  # LIMITS keep a mask under half a second; a thread that hangs all the same costs its own request
MAX_AHEAD = 64  # tokens,
AHEAD_SECONDS = 0.02  # or as soon as this has passed


def make_mask(matcher: LLMatcher, num_words: int, eos_mask: np.ndarray) -> np.ndarray:
    """int32 [num_words]. Raises ConstraintFailed where the grammar, or its size, lets nothing come next."""
    if matcher.is_stopped() and not matcher.is_error():
        return eos_mask  # complete: nothing but EOS
    mask = np.zeros(num_words, np.int32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        raise ConstraintFailed(f"The output's grammar has come to an end: {_reason(matcher)}")
    return mask


def run_ahead(matcher: LLMatcher, num_words: int, eos_mask: np.ndarray) -> list[np.ndarray]:
    """The masks of the next tokens: each but the last allows just one, which the matcher has consumed already.

    Raises as make_mask.
    """
    masks, end = [make_mask(matcher, num_words, eos_mask)], time.monotonic() + AHEAD_SECONDS
    while len(masks) < MAX_AHEAD and time.monotonic() < end and not matcher.is_stopped():
        if (token := only_token(masks[-1])) is None:
            break
        _consume(matcher, token)
        masks.append(make_mask(matcher, num_words, eos_mask))
    return masks


def _consume(matcher: LLMatcher, token_id: int) -> None:
    if not matcher.consume_token(token_id):
        raise ConstraintFailed(f"The output does not keep to its grammar: {_reason(matcher)}")


def _reason(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().partition("<state>")[0].split())[:200]


class GrammarConstraint:
    """Once the grammar is complete it allows nothing but EOS.

    masks: as `run_ahead` gives them. more: EOS is allowed only then, and not where the grammar could end but could go
    on, too.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        masks: Sequence[np.ndarray],
        pool: ThreadPoolExecutor,
        eos_ids: Set[int],
        *,
        more: bool,
    ):
        self._matcher = matcher
        self._pool = pool
        self._eos_ids = eos_ids
        self._eos_mask = eos_mask(eos_ids, len(masks[0]))
        self._more = more
        self._masks: Sequence[np.ndarray] | Future[list[np.ndarray]] = masks

    def advance(self, token_id: int) -> None:
        if token_id in self._eos_ids:
            return
        try:
            masks = self._known()
        except ConstraintFailed:
            return  # as `mask` will tell
        if len(masks) > 1 and token_id == only_token(masks[0]):
            self._masks = masks[1:]
        else:
            self._masks = self._pool.submit(self._go_on, token_id)

    def _go_on(self, token_id: int) -> list[np.ndarray]:
        _consume(self._matcher, token_id)
        return run_ahead(self._matcher, len(self._eos_mask), self._eos_mask)

    def _known(self) -> Sequence[np.ndarray]:
        if isinstance(self._masks, Future):
            try:
                self._masks = self._masks.result(timeout=MASK_SECONDS)
            except FutureTimeoutError:
                raise ConstraintFailed("The output's grammar takes too long.") from None
        return self._masks

    def mask(self) -> np.ndarray:
        mask = self._known()[0]
        if self._more and (longer := mask & ~self._eos_mask).any():
            return longer
        return mask

    def forced(self) -> Sequence[int]:
        try:
            tokens = [only_token(mask) for mask in self._known()]
        except ConstraintFailed:
            return ()
        return [token for token in tokens if token is not None]  # of each but the last, and perhaps of that

    def copy(self) -> "GrammarConstraint":
        masks = self._known()
        return GrammarConstraint(self._matcher.deep_copy(), masks, self._pool, self._eos_ids, more=self._more)


def eos_mask(eos_ids: Set[int], num_words: int) -> np.ndarray:
    """int32 [num_words], with the bits of EOS only."""
    bits = np.zeros(32 * num_words, bool)
    bits[list(eos_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
