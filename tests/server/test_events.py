"""Events of chunks that differ in their text only."""

import json

import pytest

from xlaserve.server.events import Frame, event
from xlaserve.server.responses import ChatChunk, ChatChunkChoice, ChatDelta

TEXTS = ["a", 'say "hi"', "back\\slash", "\n\r\t\b\f", "\x00\x1f\x7f", "é日🌶\u2028", "</script>", "%s{}"]


def chunk(text: str) -> ChatChunk:
    choice = ChatChunkChoice(index=0, delta=ChatDelta(content=text), logprobs=None, finish_reason=None)
    return ChatChunk(
        id='with "marks"', object="chat.completion.chunk", created=1, model="m", choices=[choice], usage=None
    )


@pytest.mark.parametrize("text", TEXTS)
def test_a_frame_says_what_pydantic_would(text):
    filled = Frame(chunk).event(text)
    assert filled == event(chunk(text).json_bytes())
    assert json.loads(filled.removeprefix(b"data: "))["choices"][0]["delta"] == {"content": text}
