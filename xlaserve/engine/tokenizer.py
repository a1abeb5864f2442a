"""Text to token ids and back, chat messages to text, and what a model's files say of EOS and of sampling. No jax."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import tokenizers

from xlaserve.engine.chat_template import ChatTemplate
from xlaserve.engine.gguf_tokenizer import read_metadata
from xlaserve.engine.hf_tokenizer import read_folder
from xlaserve.engine.request_template import render_apart
from xlaserve.engine.spelling import Spelling
from xlaserve.engine.vocabulary import Vocabulary, byte_vocabulary
from xlaserve.errors import CheckpointError, ConfigError, InvalidRequest
from xlaserve.sampling_params import SamplingParams

_NO_TEMPLATE = (
    "This model has no chat template. Set one with `--chat-template FILE` (in the configuration: model.chat_template), "
    "or send a prompt to /v1/completions."
)
_NO_VOCABULARY = "This model's folder has no tokenizer: send the prompt as token ids."


class Tokenizer:
    """One vocabulary; safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | None = None):
        backend = vocabulary.backend
        backend.no_truncation()  # the files may ask for either
        backend.no_padding()
        self._backend = backend
        self._template = template
        self._named_tokens = vocabulary.named_tokens
        self._bytes: dict[int, bytes] = {}
        bos = vocabulary.named_tokens.get("bos_token")
        self.bos_id: int | None = backend.token_to_id(bos) if bos is not None else None
        self.eos_ids = vocabulary.eos_ids  # of the tokenizer alone
        vocab = backend.get_vocab()
        self.vocab_size: int = max(vocab.values(), default=-1) + 1  # ids may have gaps
        self.longest_token: int = max(map(len, vocab), default=0)  # characters, at least as many as it stands for
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.spelling = Spelling(backend.decoder)
        self._adds_bos = self.bos_id is not None and backend.encode("").ids[:1] == [self.bos_id]

    def to_json(self) -> dict[str, Any]:
        """What `from_json` makes the same tokenizer of, in another process."""
        return {
            "backend": self._backend.to_str(),
            "named_tokens": self._named_tokens,
            "eos_ids": sorted(self.eos_ids),
            "chat_template": self._template.source if self._template else None,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Tokenizer":
        named, source = content["named_tokens"], content["chat_template"]
        backend = tokenizers.Tokenizer.from_str(content["backend"])
        template = None if source is None else ChatTemplate(source, named)
        return cls(Vocabulary(backend, named, frozenset(content["eos_ids"])), template)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """With special tokens, text that begins with the BOS text does not get another one.

        Raises InvalidRequest for text that UTF-8 cannot write, and where there is no vocabulary.
        """
        if not self.vocab_size:
            raise InvalidRequest(_NO_VOCABULARY, param="prompt")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"The text is not Unicode: a lone surrogate at {error.start}", param="prompt"
            ) from error
        ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._adds_bos:
            repeated = 0
            while ids[repeated + 1 : repeated + 2] == [self.bos_id]:
                repeated += 1
            return ids[repeated:]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Ids that the tokenizer lacks give no text."""
        known = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
        return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def special_id(self, text: str) -> int | None:
        """The special token of this text, if there is one."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def token(self, token_id: int) -> str | None:
        """As the vocabulary spells it; None for an id that it lacks."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def gives_text(self, token_id: int, *, skip_special_tokens: bool = True) -> bool:
        """Whether the token shows in the output's text at all."""
        if skip_special_tokens and token_id in self.special_ids:
            return False
        return self.token(token_id) is not None

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, a special one its name; b"" for an id that the tokenizer lacks."""
        found = self._bytes.get(token_id)
        if found is None:
            token = self.token(token_id)
            if token is None:
                return b""
            if self.spelling.kind == "other":
                found = self.decode([token_id], skip_special_tokens=False).encode()
            else:
                found = self.spelling.bytes_of(token)
            self._bytes[token_id] = found
        return found

    def token_text(self, token_id: int) -> str:
        """How the token is shown in logprobs; bytes that are no character by themselves are U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    @property
    def chat_template(self) -> str:
        """Its source; "" without one."""
        return self._template.source if self._template else ""

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, chat_template: str | None = None, **options: Any
    ) -> str:
        """To be encoded without special tokens: the template writes them. options: see `ChatTemplate.render`.

        chat_template: a client's, in place of the model's own. Raises InvalidRequest, also for what the template would
        leave out, and for a client's template Overloaded.
        """
        if chat_template is not None:
            return render_apart(chat_template, self._named_tokens, messages, options)
        if self._template is None:
            raise InvalidRequest(_NO_TEMPLATE, param="messages")
        return self._template.render(messages, **options)


def load_tokenizer(
    folder: Path | None, gguf_metadata: dict[str, Any] | None, *, chat_template: Path | None = None
) -> Tokenizer:
    """From a Hugging Face folder or a GGUF file's metadata; with neither, tokens are bytes.

    `chat_template` is a file that replaces the checkpoint's template. Raises CheckpointError, and ConfigError for it.
    """
    if folder is not None:
        vocabulary = read_folder(folder)
    elif gguf_metadata is not None:
        vocabulary = read_metadata(gguf_metadata)
    else:
        vocabulary = byte_vocabulary()
    return Tokenizer(vocabulary, _load_template(vocabulary, chat_template))


def _load_template(vocabulary: Vocabulary, file: Path | None) -> ChatTemplate | None:
    source = vocabulary.chat_template
    if file is not None:
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"model.chat_template: {file}: cannot be read: {error}") from error
    if source is None:
        return None
    try:
        return ChatTemplate(source, vocabulary.named_tokens)
    except jinja2.TemplateSyntaxError as error:
        problem = f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
        if file is not None:
            raise ConfigError(f"model.chat_template: {file}: {problem}") from error
        raise CheckpointError(f"{vocabulary.where}: {problem}; --chat-template FILE replaces it") from error


def eos_union(tokenizer: Tokenizer, config: dict[str, Any], generation_config: dict[str, Any]) -> frozenset[int]:
    """Any of the three may name tokens that end the output; each file may have one id, several or none."""
    found = set(tokenizer.eos_ids)
    for file, content in (("config.json", config), ("generation_config.json", generation_config)):
        value = content.get("eos_token_id")
        ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in ids):
            raise CheckpointError(f"{file}: eos_token_id is {value!r}; expected a token id or a list of them")
        found.update(ids)
    return frozenset(found)


SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """What generation_config.json itself sets for requests that do not; Hugging Face's class defaults do not count."""
    found = {key: generation_config.get(key) for key in SAMPLING_DEFAULTS}
    found = {key: value for key, value in found.items() if value is not None}
    try:
        SamplingParams(**found)
    except InvalidRequest as error:
        raise CheckpointError(f"generation_config.json: {error}; --generation-config none ignores the file") from error
    return found
