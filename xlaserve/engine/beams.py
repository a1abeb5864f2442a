"""The choice of beams, step by step: as transformers' beam search makes it with early_stopping=False. Numbers only.

A score is the sum of the logprobs of all generated tokens, the one that ends the answer included, over their number
to the power of `length_penalty`.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from xlaserve.core.outputs import TokenLogprobs


@dataclass(frozen=True)
class Beam:
    """The tokens generated so far, and the sum of their logprobs."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, with all the alternatives it was chosen among
    total: float = 0.0

    def score(self, length_penalty: float) -> float:
        return self.total / len(self.token_ids) ** length_penalty


class Beams:
    """One search. `live`: the beams to go on with, best first; none once it is over. `finished`: best first.

    stop_ids: what ends a beam. max_tokens: the longest answer; beams end there. Each step needs the best
    width + len(stop_ids) next tokens of every live beam: then there are always `width` to go on with, just those that
    the whole vocabulary would give.
    """

    def __init__(self, width: int, *, length_penalty: float, stop_ids: Set[int], max_tokens: int):
        self._width = width
        self._length_penalty = length_penalty
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self.live = [Beam()]
        self.finished: list[Beam] = []

    def advance(self, found: Sequence[TokenLogprobs]) -> None:
        """One token more: `found` has the alternatives for it, for each live beam in turn."""
        candidates = [
            (beam.total + logprob, token, logprob, beam, alternatives)
            for beam, alternatives in zip(self.live, found, strict=True)
            for token, logprob in alternatives.top
        ]
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        is_last = len(self.live[0].token_ids) + 1 == self._max_tokens
        best = candidates[: self._width]  # further ones are looked at only for beams to go on with
        ended = [_extend(*each) for each in best if is_last or each[1] in self._stop_ids]
        self.finished = self._ranked(self.finished + ended)
        goes_on = [] if is_last else [each for each in candidates if each[1] not in self._stop_ids]
        self.live = [_extend(*each) for each in goes_on[: self._width]]
        if len(self.finished) == self._width and self.live and not self._may_improve():
            self.live = []

    def best(self) -> list[Beam]:
        """The best answers, as far as the search has come; none before its first step."""
        return self._ranked(self.finished + [beam for beam in self.live if beam.token_ids])

    def _may_improve(self) -> bool:
        """Whether the best live beam would be among the best if it ended here. It may become better later: that is not
        looked at, as in transformers."""
        return self.live[0].score(self._length_penalty) > self.finished[-1].score(self._length_penalty)

    def _ranked(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=lambda beam: beam.score(self._length_penalty), reverse=True)[: self._width]


def _extend(total: float, token: int, logprob: float, beam: Beam, found: TokenLogprobs) -> Beam:
    return Beam((*beam.token_ids, token), (*beam.logprobs, TokenLogprobs(logprob, found.top)), total)
