"""Logprobs in OpenAI's two shapes."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from xlaserve.server.responses import (
    Alternative,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprobContent,
)

if TYPE_CHECKING:
    from xlaserve.engine.output_processor import PromptToken, TokenLogprob

LOWEST = -9999.0  # OpenAI's figure for minus infinity, which JSON lacks


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) and logprob > LOWEST else LOWEST


def _shown(token_id: int, token: str, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else token


def completion_logprobs(
    entries: "Iterable[PromptToken | TokenLogprob]", offset: int, *, num_top: int, as_ids: bool = False
) -> CompletionLogprobs:
    """`offset`: characters of this choice's tokens before these entries. num_top: alternatives of each that are shown.
    as_ids: tokens are shown as token_id:N, as vLLM shows them.

    The token itself is among its alternatives even where it is not one of the best, as at OpenAI. Alternatives that
    are shown alike (parts of a character) share a key: the likeliest keeps it.
    """
    entries = list(entries)
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    alternatives = [
        {
            _shown(token_id, token, as_ids): _finite(logprob)
            for token_id, token, *_, logprob in entry.top[:num_top][::-1]
        }
        | {_shown(entry.token_id, entry.token, as_ids): _finite(entry.logprob)}
        if entry.logprob is not None
        else None
        for entry in entries
    ]
    return CompletionLogprobs(
        tokens=[_shown(entry.token_id, entry.token, as_ids) for entry in entries],
        token_logprobs=[None if entry.logprob is None else _finite(entry.logprob) for entry in entries],
        top_logprobs=alternatives if num_top else None,
        text_offset=offsets,
    )


def chat_logprobs(entries: "Iterable[TokenLogprob]", *, as_ids: bool = False) -> ChatLogprobs:
    """as_ids: as in `completion_logprobs`; `bytes` are the token's own all the same."""
    content = [
        TokenLogprobContent(
            token=_shown(entry.token_id, entry.token, as_ids),
            logprob=_finite(entry.logprob),
            bytes=list(entry.bytes),
            top_logprobs=[
                Alternative(token=_shown(token_id, token, as_ids), logprob=_finite(logprob), bytes=list(raw))
                for token_id, token, raw, logprob in entry.top
            ],
        )
        for entry in entries
    ]
    return ChatLogprobs(content=content, refusal=None)


def prompt_logprobs(tokens: "Iterable[PromptToken]", num_top: int) -> PromptLogprobs:
    """In vLLM's shape. A token that is not among its `num_top` alternatives comes after them."""
    return [
        None
        if token.logprob is None or token.rank is None
        else {
            str(token_id): PromptLogprob(logprob=_finite(logprob), rank=rank, decoded_token=shown)
            for rank, (token_id, shown, logprob) in enumerate(token.top[:num_top], start=1)
        }
        | {
            str(token.token_id): PromptLogprob(
                logprob=_finite(token.logprob), rank=token.rank, decoded_token=token.token
            )
        }
        for token in tokens
    ]
