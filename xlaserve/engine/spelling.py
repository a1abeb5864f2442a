"""How the tokens of a vocabulary spell text, read from the decoder of the `tokenizers` library.

- byte_level: a token is a string of bytes, and text is their concatenation.
- byte_fallback (SentencePiece): a token is text, except that a character the vocabulary lacks comes as a run of byte
  tokens, one per byte. A run counts as a whole: unless all of it is UTF-8, each byte of it becomes U+FFFD.
- joined (WordPiece, and no decoder at all): a token is a word with a space before it, or continues one. What it adds
  depends on nothing but whether it is the first.
- other: only the library knows.
"""

import json
import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_STRIP_FIRST_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

# WordPiece's clean-up, done to each token by itself, in this order
_CLEANED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m", " do not": " don't"}
_CLEANED |= {" 's": "'s", " 've": "'ve", " 're": "'re"}

Kind = Literal["byte_level", "byte_fallback", "joined", "other"]


def _alphabet() -> dict[str, int]:
    """GPT-2's one visible character per byte, inverted: printable Latin-1 is itself, the rest begins at U+0100."""
    visible = {byte: chr(byte) for byte in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]}
    hidden = (byte for byte in range(256) if byte not in visible)
    return {char: byte for byte, char in visible.items()} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


BYTE_OF_CHAR = _alphabet()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


class Spelling:
    """How the tokens of one tokenizer spell text, read from its decoder."""

    def __init__(self, decoder: "tokenizers.decoders.Decoder | None"):
        self.kind: Kind = "other"
        self.strips_first_space = False
        self._continuation: str | None = None  # how a token that continues a word begins, if any does
        self._cleans = False
        match _steps(decoder):
            case [{"type": "ByteLevel"}]:
                self.kind = "byte_level"
            case [
                {"type": "Replace", "pattern": {"String": space}, "content": content},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ] if strip in ([], [_STRIP_FIRST_SPACE]):
                self.kind = "byte_fallback"
                self.strips_first_space = bool(strip)
                self._space = (space, content)
            case [] if decoder is None:
                self.kind = "joined"
            case [{"type": "WordPiece", "prefix": prefix, "cleanup": cleans}]:
                self.kind = "joined"
                self._continuation, self._cleans = prefix, cleans

    def byte_of(self, token: str) -> int | None:
        """The byte of a byte token, such as <0x0A>."""
        match = _BYTE_TOKEN.fullmatch(token) if self.kind == "byte_fallback" else None
        return int(match[1], 16) if match else None

    def joined_text(self, token: str, *, is_first: bool) -> str:
        """What a token of the joined kind adds to the text."""
        if not is_first:
            prefix = self._continuation
            token = f" {token}" if prefix is None or not token.startswith(prefix) else token.removeprefix(prefix)
        if self._cleans:
            for found, clean in _CLEANED.items():
                token = token.replace(found, clean)
        return token

    def bytes_of(self, token: str) -> bytes:
        """What one token of a known kind adds to a text that has begun."""
        if self.kind == "joined":
            return self.joined_text(token, is_first=False).encode()
        if self.kind == "byte_level":
            values = [BYTE_OF_CHAR.get(char) for char in token]
            # an added token with a character outside the alphabet is written as it is
            return token.encode() if None in values else bytes(value for value in values if value is not None)
        byte = self.byte_of(token)
        return token.replace(*self._space).encode() if byte is None else bytes([byte])


def _steps(decoder: "tokenizers.decoders.Decoder | None") -> list[dict]:
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]
