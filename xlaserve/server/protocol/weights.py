"""POST /admin/models/{name}/weights."""

from typing import Annotated, Any, Literal

from pydantic import Field

from xlaserve.server.protocol.strict import Strict
from xlaserve.server.responses import Reply
from xlaserve.server.validation import validate


class WeightsRequest(Strict):
    """Other weights in place of those served."""

    path: Annotated[str, Field(min_length=1)]
    policy: Literal["drain", "recompute", "abort"] = "drain"
    timeout: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 300


class WeightsReply(Reply):
    object: Literal["weights"]
    model: str
    path: str
    policy: str
    weights_version: int
    ended_requests: int
    seconds: dict[str, float]


def parse_weights(data: dict[str, Any]) -> WeightsRequest:
    return validate(WeightsRequest, data, {})
