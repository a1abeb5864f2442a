"""The tokenizer that a GGUF file's metadata describes, under llama.cpp's key names (tokenizer.ggml.*).

Two kinds of vocabulary: "gpt2" is byte-level BPE, whose text is cut first by the rule that `pre` names; "llama" is
SentencePiece BPE with byte fallback, whose merges follow from the tokens' scores.
"""

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from xlaserve.engine.pre_tokenizers import PRE_TOKENIZERS
from xlaserve.engine.vocabulary import Vocabulary, add_around_text
from xlaserve.errors import CheckpointError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of token_type
_SPACE = "\u2581"  # SentencePiece's
_NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",
}
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")


def read_metadata(metadata: dict[str, Any]) -> Vocabulary:
    """Raises CheckpointError naming the key that is missing or cannot be used."""
    fields = _Fields(metadata)
    model = fields.get("model", str)
    if model not in ("gpt2", "llama"):
        raise CheckpointError(f"{fields.key('model')} is {model!r}; expected gpt2 or llama")
    backend, adds_bos = _byte_level(fields) if model == "gpt2" else _sentencepiece(fields)
    tokens = fields.tokens
    for special, types in ((True, (_CONTROL, _UNKNOWN)), (False, (_USER_DEFINED,))):
        chosen = [tokens[i] for i, token_type in enumerate(fields.types) if token_type in types]
        add = backend.add_special_tokens if special else backend.add_tokens
        add([AddedToken(token, normalized=False, special=special) for token in chosen if token])
    named = {name: tokens[i] for name, key in _NAMED.items() if (i := fields.token_id(key)) is not None}
    first = named.get("bos_token") if fields.get("add_bos_token", bool, adds_bos) else None
    last = named.get("eos_token") if fields.get("add_eos_token", bool, False) else None
    add_around_text(backend, first, last)
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(backend, named, _eos_ids(fields, template), template, "tokenizer.chat_template")


class _Fields:
    """The metadata under tokenizer.ggml, checked."""

    def __init__(self, metadata: dict[str, Any]):
        self._metadata = metadata
        self.tokens: list[str] = self.items("tokens")
        if len(set(self.tokens)) < len(self.tokens):
            raise CheckpointError(f"{self.key('tokens')}: holds a token twice")
        count = len(self.tokens)
        types = self.items("token_type") if self.key("token_type") in metadata else [_NORMAL] * count
        if len(types) != count:
            raise CheckpointError(
                f"{self.key('token_type')}: has {len(types)} entries; expected {count}, one per token"
            )
        self.types: list[int] = types

    @staticmethod
    def key(name: str) -> str:
        return f"tokenizer.ggml.{name}"

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        value = self._metadata.get(self.key(name), default)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is {value!r}"
            raise CheckpointError(f"{self.key(name)} {found}; expected a {kind.__name__}")
        return value

    def items(self, name: str) -> list:
        values = self._metadata.get(self.key(name))
        if values is None or isinstance(values, str | int | float):
            raise CheckpointError(f"{self.key(name)} is {values!r}; expected a list")
        return values.tolist() if hasattr(values, "tolist") else list(values)

    def token_id(self, name: str) -> int | None:
        """None if the file names no such token, or one beyond its own vocabulary."""
        token_id = self._metadata.get(self.key(f"{name}_token_id"))
        return int(token_id) if token_id is not None and 0 <= token_id < len(self.tokens) else None


def _eos_ids(fields: _Fields, template: str | None) -> frozenset[int]:
    """EOS, and what ends a turn: a GGUF has no generation_config.json, and older ones do not name that token.

    An unnamed one is a token of a known name that the chat template writes.
    """
    found = {fields.token_id(name) for name in ("eos", "eot", "eom")}
    ends = [end for end in _TURN_ENDS if template is not None and end in template]
    found.update(fields.tokens.index(end) for end in ends if end in fields.tokens)
    return frozenset(i for i in found if i is not None)


def _byte_level(fields: _Fields) -> tuple[tokenizers.Tokenizer, bool]:
    name = fields.get("pre", str, "default")
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise CheckpointError(f"{fields.key('pre')} is {name!r}; expected one of {known}")
    pairs = (merge.partition(" ") for merge in fields.items("merges"))  # no token holds a space
    merges = [(left, right) for left, _, right in pairs]
    backend = Tokenizer(_bpe(fields, merges, ignore_merges=rule.whole_words_first))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, rule.adds_bos


def _sentencepiece(fields: _Fields) -> tuple[tokenizers.Tokenizer, bool]:
    unknown = fields.token_id("unknown")
    scores = fields.items("scores")
    if len(scores) != len(fields.tokens):
        raise CheckpointError(f"{fields.key('scores')}: has {len(scores)} entries; expected {len(fields.tokens)}")
    normal = [i for i, token_type in enumerate(fields.types) if token_type == _NORMAL]
    normal.sort(key=lambda i: -scores[i])
    merges = _merges_of([fields.tokens[i] for i in normal])
    options = {"unk_token": fields.tokens[unknown], "fuse_unk": True} if unknown is not None else {}
    backend = Tokenizer(_bpe(fields, merges, byte_fallback=True, **options))
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.get("add_space_prefix", bool, True):
        # before each stretch of text between special tokens, as llama.cpp and SentencePiece itself do
        spaces = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend, True


def _bpe(fields: _Fields, merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocab = {token: i for i, token in enumerate(fields.tokens)}
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{fields.key('merges')}: {error}") from error


def _merges_of(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs that make up a token, best token first; SentencePiece joins whichever neighbours make the best one."""
    known = set(tokens)
    return [
        (left, right)
        for token in tokens
        for cut in range(len(token) - 1, 0, -1)
        if (left := token[:cut]) in known and (right := token[cut:]) in known
    ]
