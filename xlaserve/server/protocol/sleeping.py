"""POST /admin/sleep and /admin/wake: what stands in the URL, for there is no body."""

from typing import Annotated, Any, Literal

from pydantic import Field

from xlaserve.server.protocol.strict import Strict
from xlaserve.server.responses import Reply
from xlaserve.server.validation import validate


class WakeQuery(Strict):
    """model: None: all of them."""

    model: str | None = None


class SleepQuery(WakeQuery):
    level: Literal["1", "2"] = "1"
    timeout: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False, strict=False)] = 30


class SleepReply(Reply):
    object: Literal["sleep"]
    sleep_levels: dict[str, int]  # by the model's name; 0: awake
    seconds: float


def parse_sleep(query: dict[str, Any]) -> SleepQuery:
    return validate(SleepQuery, query, {})


def parse_wake(query: dict[str, Any]) -> WakeQuery:
    return validate(WakeQuery, query, {})
