"""A model's vocabulary as llguidance wants it."""

from collections.abc import Callable, Set

from llguidance import LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from xlaserve.engine.tokenizer import Tokenizer

_MARKER = b"\xff"  # llguidance takes a token that begins with it for a special one; no text in UTF-8 has it


class _Tokens:
    """What TokenizerWrapper asks for. Ids that the tokenizer lacks have no bytes: they are never allowed."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_id: int):
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        spelled = (tokenizer.token_bytes(token_id) for token_id in range(vocab_size))
        self.tokens = [b"" if token.startswith(_MARKER) else token for token in spelled]
        self.special_token_ids = sorted(token_id for token_id in tokenizer.special_ids if token_id < vocab_size)
        self.greedy: Callable[[str], list[int]] | None = None
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The tokens that a model would write `text` with, where it has to."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if ids and self.tokens[ids[0]] == b" ":  # of SentencePiece, which begins each text with a space
            ids = ids if text.startswith(" ") else ids[1:]
        if self.greedy is None or b"".join(self.tokens[token_id] for token_id in ids) == text.encode():
            return ids
        return self.greedy(text)


def make_ll_tokenizer(tokenizer: Tokenizer, vocab_size: int, eos_ids: Set[int]) -> LLTokenizer:
    """Takes a few tenths of a second, for a large vocabulary more than one. At least one EOS id is needed."""
    ordered = sorted(eos_ids)
    tokens = _Tokens(tokenizer, vocab_size, ordered[0])
    found = LLTokenizer(TokenizerWrapper(tokens), eos_token=ordered)
    tokens.greedy = found.greedy_tokenize
    return found
