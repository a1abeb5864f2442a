"""From what a request sends, text or messages, to token ids. No flask here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xlaserve.errors import InvalidRequest
from xlaserve.server.messages import Message

if TYPE_CHECKING:
    from xlaserve.engine.tokenizer import Tokenizer


def prompt_ids(tokenizer: "Tokenizer", prompt: str | list[int]) -> list[int]:
    """Raises InvalidRequest for text that gives no token at all, as "" does where the tokenizer adds no BOS."""
    if not isinstance(prompt, str):
        return prompt
    ids = tokenizer.encode(prompt)
    if not ids:
        raise InvalidRequest(
            "The prompt is empty, and this model's tokenizer adds no token of its own.", param="prompt"
        )
    return ids


def chat_ids(
    tokenizer: "Tokenizer",
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    add_special_tokens: bool = False,
) -> list[int]:
    """The template writes the special tokens, BOS among them: the tokenizer adds none by default."""
    text = tokenizer.apply_chat_template(
        [message.for_template() for message in messages], add_generation_prompt=add_generation_prompt
    )
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)
