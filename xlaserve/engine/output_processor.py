"""Engine outputs of one request to text: detokenising, stop strings and what logprobs show. Knows no jax and no engine.

Runs on the thread that reads the answer, and could run in another process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xlaserve.core.outputs import EngineOutput, FinishReason, TokenLogprobs
from xlaserve.core.reading import PromptScores
from xlaserve.engine.detokenizer import make_detokenizer
from xlaserve.engine.stop_strings import StopStrings
from xlaserve.sampling_params import SamplingParams

if TYPE_CHECKING:
    from xlaserve.engine.tokenizer import Tokenizer


_Bytes = bytes  # the class below has a field of that name


@dataclass(frozen=True)
class TokenLogprob:
    """One generated token; `token` shows bytes that are no character by themselves as U+FFFD, `bytes` has them all."""

    token_id: int
    token: str
    bytes: _Bytes
    logprob: float
    top: tuple[tuple[int, str, _Bytes, float], ...]  # (id, token, bytes, logprob), best first


@dataclass(frozen=True)
class Measured:
    """Of one request, when it has ended."""

    num_cached_tokens: int  # of its prompt, found in the prefix cache
    timings: dict[str, float | None]  # seconds, as in `Generation.timings`


@dataclass(frozen=True)
class PromptToken:
    """One token of the prompt. The first has no logprob and no rank, as the model has nothing to tell it from."""

    token_id: int
    token: str  # as in TokenLogprob
    logprob: float | None = None
    rank: int | None = None  # 1 for the likeliest of the vocabulary
    top: tuple[tuple[int, str, float], ...] = ()  # (id, token, logprob), best first


@dataclass(slots=True)
class TextDelta:
    """What is new since the last one. Text may lag behind `token_ids`: what may become a stop string is held back."""

    text: str = ""
    token_ids: tuple[int, ...] = ()  # EOS included
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token id, if asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or string that ended the output, "timeout"; None for EOS
    error: str | None = None  # with finish_reason "error" or "timeout"
    prompt_tokens: tuple[PromptToken, ...] | None = None  # of the first delta, if their logprobs were asked for
    embedding: np.ndarray | None = None  # float32 [D], not normalised: of a request that asks for it, and nothing else
    score: float | None = None  # of an answer that a beam search has found
    measured: Measured | None = None  # of the last delta


class OutputProcessor:
    """One per request. `stop_ids` are the tokens that end it, EOS (unless ignored) and its stop_token_ids.

    They give no text, unless the request wants what ends it in its output.
    """

    def __init__(
        self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], params: SamplingParams, stop_ids: frozenset[int]
    ):
        self._tokenizer = tokenizer
        self._wants_logprobs = params.logprobs is not None
        self._prompt_ids = prompt_ids
        self._stop_ids = frozenset() if params.include_stop_str_in_output else stop_ids
        self._detokenizer = make_detokenizer(
            tokenizer,
            prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._has_stops = bool(params.stop)
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self.finished = False

    def push(self, output: EngineOutput) -> TextDelta:
        """Text of the new tokens, as far as it is certain.

        After a stop string the delta ends with the token that completed it, `finished` is set, and the caller is to
        abort the request: whatever still comes gives empty deltas.
        """
        if self.finished:
            return TextDelta()
        text: list[str] = []
        detokenize, stop_ids = self._detokenizer.push, self._stop_ids
        for count, token_id in enumerate(output.token_ids, start=1):
            if token_id in stop_ids:
                break
            if not self._has_stops:
                text.append(detokenize(token_id))
                continue
            text.append(self._stops.push(detokenize(token_id), self._detokenizer.held_text))
            if self._stops.found is not None:
                return self._delta(output, "".join(text), count, "stop", self._stops.found)
        if output.finish_reason is None:
            return self._delta(output, "".join(text), len(output.token_ids), None, None)
        text.append(self._stops.push(self._detokenizer.finish()))
        if self._stops.found is not None:
            return self._delta(output, "".join(text), len(output.token_ids), "stop", self._stops.found)
        text.append(self._stops.finish())
        return self._delta(output, "".join(text), len(output.token_ids), output.finish_reason, output.stop_reason)

    def _delta(
        self,
        output: EngineOutput,
        text: str,
        num_tokens: int,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
    ) -> TextDelta:
        self.finished = finish_reason is not None
        token_ids = output.token_ids[:num_tokens]
        logprobs = None
        if self._wants_logprobs:
            logprobs = tuple(map(self._logprob, token_ids, (output.logprobs or ())[:num_tokens]))
        delta = TextDelta(text, token_ids, logprobs, finish_reason, stop_reason, output.error)
        if isinstance(output.read, PromptScores):
            delta.prompt_tokens = self._prompt_tokens(output.read)
        elif output.read is not None:
            delta.embedding = output.read.embedding
        return delta

    def _prompt_tokens(self, read: PromptScores) -> tuple[PromptToken, ...]:
        show = self._tokenizer.token_text
        columns = (read.logprobs, read.ranks, read.top_ids, read.top_logprobs)
        scored = zip(self._prompt_ids[1:], *(column.tolist() for column in columns), strict=True)
        return (
            PromptToken(self._prompt_ids[0], show(self._prompt_ids[0])),
            *(
                PromptToken(
                    token_id, show(token_id), logprob, rank,
                    tuple((i, show(i), top) for i, top in zip(ids, tops, strict=True) if top > -np.inf),
                )
                for token_id, logprob, rank, ids, tops in scored
            ),
        )  # fmt: skip

    def _logprob(self, token_id: int, found: TokenLogprobs) -> TokenLogprob:
        show, spell = self._tokenizer.token_text, self._tokenizer.token_bytes
        top = tuple((i, show(i), spell(i), logprob) for i, logprob in found.top)
        return TokenLogprob(token_id, show(token_id), spell(token_id), found.logprob, top)
