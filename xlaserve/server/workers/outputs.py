"""Engine outputs of many generations as the body of one frame, and back.

What nearly all of them are, some token ids and nothing else, is a list of numbers: generation, count, ids, and so on.
The others, as first and last ones, follow in JSON.
"""

import json
import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from xlaserve.core.outputs import EngineOutput, TokenLogprobs
from xlaserve.core.reading import PromptScores
from xlaserve.core.request import Request

_COUNT = struct.Struct("=I")  # of the numbers
_ENDS = ("finish_reason", "stop_reason", "error")
_SCORES = {"logprobs": np.float32, "ranks": np.int32, "top_ids": np.int32, "top_logprobs": np.float32}
# Of a request, what its reader tells of it: times are of time.monotonic(), which all processes of a machine share.
_FACTS = ("num_cached_tokens", "arrival_time", "first_scheduled_time", "first_token_time")

Entry = tuple[int, EngineOutput, dict[str, Any] | None]  # number of the generation, what is new, its facts


def facts_of(request: Request) -> dict[str, Any]:
    """To be sent with a generation's first output: they do not change after it."""
    return {name: getattr(request, name) for name in _FACTS}


def encode_outputs(entries: Iterable[Entry]) -> bytes:
    """At most one entry of each generation."""
    numbers, others = array("q"), []
    for number, output, facts in entries:
        token_ids = output.token_ids
        if facts is None and output.finish_reason is None and output.logprobs is None and output.read is None:
            numbers.extend((number, len(token_ids), *token_ids))
        else:
            others.append(_to_json(number, output, facts))
    return _COUNT.pack(len(numbers)) + numbers.tobytes() + (json.dumps(others).encode() if others else b"")


def _to_json(number: int, output: EngineOutput, facts: dict[str, Any] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"number": number, "token_ids": output.token_ids}
    entry |= {name: value for name in _ENDS if (value := getattr(output, name)) is not None}
    if output.logprobs is not None:
        entry["logprobs"] = [(each.logprob, each.top) for each in output.logprobs]
    if facts is not None:
        entry["facts"] = facts
    if isinstance(output.read, PromptScores):
        entry["scores"] = {name: getattr(output.read, name).tolist() for name in _SCORES}
    return entry


def decode_outputs(body: bytes) -> Iterator[Entry]:
    """Request ids are left empty: the number says whose it is."""
    (count,) = _COUNT.unpack_from(body)
    numbers = array("q")
    rest = _COUNT.size + count * numbers.itemsize
    numbers.frombytes(body[_COUNT.size : rest])
    at = 0
    while at < count:
        end = at + 2 + numbers[at + 1]
        yield numbers[at], EngineOutput("", tuple(numbers[at + 2 : end])), None
        at = end
    for entry in json.loads(body[rest:] or b"[]"):
        yield entry["number"], _from_json(entry), entry.get("facts")


def _from_json(entry: dict[str, Any]) -> EngineOutput:
    output = EngineOutput("", tuple(entry["token_ids"]), **{name: entry.get(name) for name in _ENDS})
    if "logprobs" in entry:
        output.logprobs = tuple(
            TokenLogprobs(logprob, tuple((token_id, other) for token_id, other in top))
            for logprob, top in entry["logprobs"]
        )
    if (scores := entry.get("scores")) is not None:
        num_tokens, num_top = len(scores["logprobs"]), max(map(len, scores["top_ids"]), default=0)
        shapes = {name: (num_tokens, num_top) if name.startswith("top_") else num_tokens for name in _SCORES}
        arrays = {name: np.array(scores[name], dtype).reshape(shapes[name]) for name, dtype in _SCORES.items()}
        output.read = PromptScores(**arrays)
    return output
