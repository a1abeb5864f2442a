"""Small tokenizers for tests: bytes, byte-level BPE, SentencePiece with byte fallback, WordPiece. They need no file."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from xlaserve.engine.chat_template import ChatTemplate
from xlaserve.engine.spelling import CHAR_OF_BYTE
from xlaserve.engine.tokenizer import Tokenizer, load_tokenizer
from xlaserve.engine.vocabulary import Vocabulary, add_around_text

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '[' ~ m.role ~ ']' ~ m.content ~ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_WORDS = ["the", " the", "He", "ll", "Hello", " world", " wor", "ing", "\n\n", "é", "日", " fox", "own"]


def byte_tokenizer() -> Tokenizer:
    """Token n is byte n."""
    return load_tokenizer(None, None)


def byte_level_vocabulary(*, add_bos: bool = False, template: str | None = None) -> Vocabulary:
    """Ids 0-255 are the bytes; then come a few words and what leads to them, and <s> and </s>, which are special."""
    vocab = {CHAR_OF_BYTE[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        spelled = "".join(CHAR_OF_BYTE[byte] for byte in word.encode())
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocab:
                vocab[spelled[:end]] = len(vocab)
                merges.append((spelled[: end - 1], spelled[end - 1]))
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return with_named_tokens(backend, add_bos, template)


def sentencepiece_vocabulary(
    *, add_bos: bool = True, space_prefix: bool = True, template: str | None = None
) -> Vocabulary:
    """<unk>, <s>, </s>, then 256 byte tokens <0x00> on, then letters and words. 日 and 🌶 have no token of their own."""
    pieces = [*"▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:!?é", "▁▁"]
    merges: list[tuple[str, str]] = [("▁", "▁")]
    for word in ["▁the", "▁Hello", "▁world", "Hello", "ing", "▁fox", "own"]:
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.normalizer = normalizers.Replace(" ", "▁")
    if space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return with_named_tokens(backend, add_bos, template)


def with_named_tokens(backend: Backend, add_bos: bool, template: str | None) -> Vocabulary:
    """Adds <s> and </s>, which are special."""
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<s>", "</s>")])
    if add_bos:
        add_around_text(backend, "<s>", None)
    eos = backend.token_to_id("</s>")
    return Vocabulary(backend, {"bos_token": "<s>", "eos_token": "</s>"}, frozenset([eos]), template)


def as_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    template = vocabulary.chat_template
    return Tokenizer(vocabulary, ChatTemplate(template, vocabulary.named_tokens) if template is not None else None)


def byte_level_tokenizer(**options: Any) -> Tokenizer:
    return as_tokenizer(byte_level_vocabulary(**options))


def sentencepiece_tokenizer(**options: Any) -> Tokenizer:
    return as_tokenizer(sentencepiece_vocabulary(**options))


def wordpiece_tokenizer(*, cleanup: bool, template: str | None = None) -> Tokenizer:
    """As BERT has it: words and their continuations. [UNK], [CLS] and [SEP] are special, ids 0 to 2."""
    words = ["[UNK]", "[CLS]", "[SEP]", "do", "not", "is", "n't", "'", "'s", "'m", "'re", "'ve", ".", ",", "!", "?"]
    words += ["##n't", "##not", "##", "##s", "un", "##aff", "##able", " x", "é", "##\u0301", "do not", "ask"]
    backend = Backend(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(cleanup=cleanup)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in words[:3]])
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("plain", "##added")])
    return as_tokenizer(Vocabulary(backend, chat_template=template))


def write_tokenizer(vocabulary: Vocabulary, folder: Path, **config: Any) -> None:
    """As a Hugging Face folder has it; `config` are further fields of tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.backend.save(str(folder / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", **vocabulary.named_tokens, **config}
    if vocabulary.chat_template is not None:
        fields["chat_template"] = vocabulary.chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
