"""The tokenizer of a Hugging Face folder: tokenizer.json and the files around it."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from xlaserve.engine.vocabulary import Vocabulary, add_around_text
from xlaserve.errors import CheckpointError

_OTHER_FILES = (
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)


def read_folder(folder: Path) -> Vocabulary:
    """Raises CheckpointError naming the file that cannot be used.

    A folder without any tokenizer file gives an empty vocabulary.
    """
    config = _read_json(folder / "tokenizer_config.json")
    backend = _read_backend(folder)
    named = _named_tokens(folder, config)
    _add_tokens(backend, folder, config, named)
    bos, eos = named.get("bos_token"), named.get("eos_token")
    bos_id, eos_id = (backend.token_to_id(token) if token is not None else None for token in (bos, eos))
    if config.get("add_bos_token") is True and bos_id is not None and bos_id not in backend.encode("").ids:
        add_around_text(backend, bos, None)
    template, where = _chat_template(folder, config)
    eos_ids = frozenset() if eos_id is None else frozenset([eos_id])
    return Vocabulary(backend, named, eos_ids, template, where)


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    """{} for a file that is not there."""
    text = _read_text(file)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{file}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}; expected an object")
    return content


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if not file.exists():
        others = [name for name in _OTHER_FILES if (folder / name).exists()]
        return _convert(folder, others) if others else tokenizers.Tokenizer(tokenizers.models.BPE())
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file}: is no tokenizer that the tokenizers library can read: {error}") from error


def _convert(folder: Path, files: list[str]) -> tokenizers.Tokenizer:
    """Lets transformers convert the older formats; it takes seconds to import."""
    from transformers import AutoTokenizer

    missing = f"{folder}: has no tokenizer.json, and transformers could not build one from {', '.join(files)}"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each format has its own
        raise CheckpointError(f"{missing}: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise CheckpointError(missing)
    return backend


def _named_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """bos_token and the like, where there are any; special_tokens_map.json counts only beside older configurations."""
    found = config
    if "added_tokens_decoder" not in config:
        found = config | _read_json(folder / "special_tokens_map.json")
    texts = {key: _text_of(value) for key, value in found.items() if key.endswith("_token")}
    return {key: text for key, text in texts.items() if text is not None}


def _text_of(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_tokens(backend: tokenizers.Tokenizer, folder: Path, config: dict[str, Any], named: dict[str, str]) -> None:
    """Adds what tokenizer_config.json declares; named tokens are special. A token without an id is left out."""
    where = f"{folder / 'tokenizer_config.json'}: added_tokens_decoder"
    known = backend.get_added_tokens_decoder()
    try:
        declared = config.get("added_tokens_decoder") or {}
        tokens = sorted((int(token_id), AddedToken(**fields)) for token_id, fields in declared.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: expected ids with the fields of a token: {error}") from error
    for token_id, token in tokens:
        if repr(known.get(token_id)) != repr(token):
            backend.add_tokens([token])
            found = backend.token_to_id(token.content)
            if found != token_id:
                raise CheckpointError(f"{where}: {token.content!r} is {token_id}, but has id {found}")
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for text in [*named.values(), *filter(None, map(_text_of, extra))]:
        token = added.get(text) or AddedToken(text, normalized=False)
        if not token.special and backend.token_to_id(text) is not None:
            token.special = True
            backend.add_special_tokens([token])


def _chat_template(folder: Path, config: dict[str, Any]) -> tuple[str | None, str]:
    """The source and the file it is from; of several named templates the default one."""
    file = folder / "chat_template.jinja"
    source = _read_text(file)
    if source is not None:
        return source, str(file)
    for name, content in (("tokenizer_config.json", config), ("chat_template.json", None)):
        file = folder / name
        template = (_read_json(file) if content is None else content).get("chat_template")
        if isinstance(template, list):
            template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        if isinstance(template, dict):
            template = template.get("default")
        if isinstance(template, str):
            return template, str(file)
    return None, str(folder)
