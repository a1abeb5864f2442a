"""How byte-level vocabularies cut text into words before merging, by the names that GGUF files use (`pre`)."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Sequence, Split

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_CAMEL_CASE = rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+%s|{_BEFORE_WORD}{_UPPER}+{_LOWER}*%s"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

_LLAMA3 = rf"{_CONTRACTION}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_REST}"
_TEKKEN = rf"{_CAMEL_CASE % ('', '')}|\p{{N}}|{_REST_WITH_SLASH}"
_GPT4O = rf"{_CAMEL_CASE % (_CONTRACTION + '?', _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")


@dataclass(frozen=True)
class PreTokenizerRule:
    pre_tokenizer: Callable[[], PreTokenizer]
    nfc: bool = False  # text is normalised to Unicode's NFC first
    whole_words_first: bool = False  # a word that is a token stays whole, whatever the merges would make of it
    adds_bos: bool = False  # unless the file says otherwise


def _split(*patterns: str, digits: bool = False) -> Callable[[], PreTokenizer]:
    def make() -> PreTokenizer:
        steps: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in patterns]
        steps += [Digits(individual_digits=True)] if digits else []
        return Sequence([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _gpt2_with_digits() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2()])


def _falcon() -> PreTokenizer:
    three_digits = Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return Sequence([Punctuation("contiguous"), _gpt2(), Digits(individual_digits=False), three_digits])


_LLAMA3_RULE = PreTokenizerRule(_split(_LLAMA3), whole_words_first=True, adds_bos=True)
_QWEN2_RULE = PreTokenizerRule(_split(_QWEN2), nfc=True)
_GPT4O_RULE = PreTokenizerRule(_split(_GPT4O))

PRE_TOKENIZERS = {
    "default": PreTokenizerRule(_gpt2),
    "gpt-2": PreTokenizerRule(_gpt2),
    "phi-2": PreTokenizerRule(_gpt2),
    "smollm": PreTokenizerRule(_gpt2_with_digits),
    "starcoder": PreTokenizerRule(_gpt2_with_digits),
    "refact": PreTokenizerRule(_gpt2_with_digits),
    "command-r": PreTokenizerRule(_gpt2_with_digits, nfc=True),
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "smaug-bpe": PreTokenizerRule(_split(_LLAMA3)),
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "tekken": PreTokenizerRule(_split(_TEKKEN), whole_words_first=True, adds_bos=True),
    "gpt-4o": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
    "deepseek-v3": PreTokenizerRule(_split(*_DEEPSEEK_V3)),
    "deepseek-coder": PreTokenizerRule(_split(*_DEEPSEEK_CODER, digits=True)),
    "falcon": PreTokenizerRule(_falcon),
}
