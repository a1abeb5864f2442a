"""The tokens of `bad_words`."""

from collections.abc import Iterable

from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.errors import InvalidRequest


def bad_word_ids(tokenizer: Tokenizer, words: Iterable[str], vocab_size: int) -> list[tuple[int, ...]]:
    """Each word as the tokenizer writes it at the start of a text and, where that is another token, after a space.

    As vLLM: the spelling after a space counts only where it has as many tokens and another first one. What the model,
    of `vocab_size`, cannot write is left out. Raises InvalidRequest for a word that has no tokens.
    """
    found = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        if not bare:
            raise InvalidRequest(f"bad_words: {word[:80]!r} has no tokens", param="bad_words")
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        found.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(spaced)
    return [ids for ids in found if max(ids) < vocab_size]
