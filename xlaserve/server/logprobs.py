"""Logprobs in OpenAI's two shapes. They are the model's own: temperature, top_k and top_p do not change them."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from xlaserve.server.responses import Alternative, ChatLogprobs, CompletionLogprobs, TokenLogprobContent

if TYPE_CHECKING:
    from xlaserve.engine.output_processor import TokenLogprob

LOWEST = -9999.0  # OpenAI's figure for minus infinity, which JSON lacks


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) and logprob > LOWEST else LOWEST


def completion_logprobs(entries: "Iterable[TokenLogprob]", offset: int) -> CompletionLogprobs:
    """`offset`: characters of this choice's tokens before these entries.

    The generated token is among its alternatives even where it is not one of the best, as at OpenAI. Alternatives that
    are shown alike (parts of a character) share a key: the likeliest keeps it.
    """
    entries = list(entries)
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    alternatives = [
        {token: _finite(logprob) for _, token, _, logprob in reversed(entry.top)}
        | {entry.token: _finite(entry.logprob)}
        for entry in entries
    ]
    return CompletionLogprobs(
        tokens=[entry.token for entry in entries],
        token_logprobs=[_finite(entry.logprob) for entry in entries],
        top_logprobs=alternatives if any(entry.top for entry in entries) else None,
        text_offset=offsets,
    )


def chat_logprobs(entries: "Iterable[TokenLogprob]") -> ChatLogprobs:
    content = [
        TokenLogprobContent(
            token=entry.token,
            logprob=_finite(entry.logprob),
            bytes=list(entry.bytes),
            top_logprobs=[
                Alternative(token=token, logprob=_finite(logprob), bytes=list(raw))
                for _, token, raw, logprob in entry.top
            ],
        )
        for entry in entries
    ]
    return ChatLogprobs(content=content, refusal=None)
