"""Logprobs in OpenAI's shapes: JSON has no infinities, and keys of one object are unique."""

import math

from xlaserve.engine.output_processor import TokenLogprob
from xlaserve.server.logprobs import chat_logprobs, completion_logprobs

ENTRY = TokenLogprob(
    token_id=5,
    token="b",
    bytes=b"b",
    logprob=-math.inf,
    top=((1, "�", b"\xf0", -0.5), (2, "a", b"a", -1.0), (3, "�", b"\x9f", -2.0), (4, "c", b"c", math.nan)),
)


def test_report_23_completions():
    logprobs = completion_logprobs([ENTRY, ENTRY], offset=3, num_top=4)
    assert logprobs.token_logprobs == [-9999.0, -9999.0]
    assert logprobs.top_logprobs == [{"�": -0.5, "a": -1.0, "c": -9999.0, "b": -9999.0}] * 2
    assert logprobs.text_offset == [3, 4]
    assert b"Infinity" not in logprobs.json_bytes()
    assert b"NaN" not in logprobs.json_bytes()


def test_report_23_chat():
    (content,) = chat_logprobs([ENTRY]).content
    assert (content.token, content.logprob, content.bytes) == ("b", -9999.0, [98])
    assert [(one.token, one.logprob, one.bytes) for one in content.top_logprobs] == [
        ("�", -0.5, [0xF0]),
        ("a", -1.0, [97]),
        ("�", -2.0, [0x9F]),
        ("c", -9999.0, [99]),
    ]
