"""From what a request sends, text or messages, to token ids. No flask here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xlaserve.errors import InvalidRequest
from xlaserve.server.messages import Message

if TYPE_CHECKING:
    from xlaserve.engine.model_info import ModelInfo
    from xlaserve.engine.tokenizer import Tokenizer
    from xlaserve.server.protocol.generation import PromptOptions


def prompt_ids(
    tokenizer: "Tokenizer",
    prompt: str | list[int],
    *,
    add_special_tokens: bool = True,
    max_model_len: int | None = None,
) -> list[int]:
    """Raises InvalidRequest for text that gives no token at all, as "" does where the tokenizer adds no BOS.

    max_model_len: text that gives more tokens for certain is refused without encoding it, which may take a minute.
    """
    if not isinstance(prompt, str):
        return prompt
    _check_length(tokenizer, prompt, max_model_len)
    ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    if not ids:
        raise InvalidRequest(
            "The prompt is empty, and this model's tokenizer adds no token of its own.", param="prompt"
        )
    return ids


def truncated(ids: list[int], asked: "PromptOptions", room: int, info: "ModelInfo") -> list[int]:
    """The last `truncate_prompt_tokens` of `ids`; for -1 as many as leave `room` tokens for an answer."""
    keep = asked.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == -1:
        keep = max(1, min(info.max_model_len, info.max_request_tokens) - room)
    return ids[-keep:]


def chat_ids(
    tokenizer: "Tokenizer",
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    add_special_tokens: bool = False,
    max_model_len: int | None = None,
    **options: Any,
) -> list[int]:
    """The template writes the special tokens, BOS among them: the tokenizer adds none by default.

    Their names in the messages become special tokens too, as in vLLM: a client can write anything into its own prompt.
    max_model_len: as in `prompt_ids`. options: further ones of `ChatTemplate.render`.
    """
    text = tokenizer.apply_chat_template(
        [message.for_template() for message in messages], add_generation_prompt=add_generation_prompt, **options
    )
    _check_length(tokenizer, text, max_model_len)
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _check_length(tokenizer: "Tokenizer", text: str, max_model_len: int | None) -> None:
    if max_model_len is not None and len(text) > max_model_len * tokenizer.longest_token:
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, you sent {len(text)} characters, "
            "which are more tokens than that. Please reduce the length of the messages or completion.",
            param="prompt",
            code="context_length_exceeded",
        )
