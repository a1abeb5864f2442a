"""The whole output of one request, gathered from its deltas. Knows no jax and no engine."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from xlaserve.core.outputs import FinishReason

if TYPE_CHECKING:
    from xlaserve.engine.output_processor import Measured, PromptToken, TextDelta, TokenLogprob


@dataclass
class Completion:
    """All that one request has produced."""

    prompt_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: "list[TokenLogprob] | None" = None  # if asked for, one per token
    prompt_tokens: "tuple[PromptToken, ...] | None" = None  # with their logprobs, if asked for
    embedding: np.ndarray | None = None  # float32 [D], not normalised, if asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it, or "timeout"
    score: float | None = None  # by which a beam search has ranked it
    measured: "Measured | None" = None  # once it has ended

    def add(self, delta: "TextDelta") -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs
        if delta.prompt_tokens is not None:
            self.prompt_tokens = delta.prompt_tokens
        self.embedding = delta.embedding
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.score = delta.score
        self.measured = delta.measured
