"""What a checkpoint says of its tokenizer, whatever the format it says it in."""

from dataclasses import dataclass, field

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from xlaserve.engine.spelling import CHAR_OF_BYTE


@dataclass(frozen=True)
class Vocabulary:
    backend: tokenizers.Tokenizer
    named_tokens: dict[str, str] = field(default_factory=dict)  # "bos_token": "<s>" and so on, as templates see them
    eos_ids: frozenset[int] = frozenset()
    chat_template: str | None = None  # source
    where: str = ""  # the file that the template is from, for messages


def byte_vocabulary() -> Vocabulary:
    """Token n is byte n; nothing is special. For models whose weights are random."""
    backend = Tokenizer(models.BPE(vocab={char: byte for byte, char in CHAR_OF_BYTE.items()}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Vocabulary(backend)


def add_around_text(backend: tokenizers.Tokenizer, first: str | None, last: str | None) -> None:
    """Makes the backend put the tokens `first` and `last` around each text it encodes with special tokens."""
    tokens = [token for token in (first, last) if token is not None]
    special = [(token, backend.token_to_id(token)) for token in dict.fromkeys(tokens)]
    # a list: in a string, a space within a token would end it
    single = [*([first] if first is not None else []), "$A", *([last] if last is not None else [])]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=None, special_tokens=special)
