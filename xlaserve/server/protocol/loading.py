"""POST /admin/models/{name}/load and /unload, which have no body."""

from typing import Literal

from xlaserve.server.responses import Reply


class LoadedReply(Reply):
    object: Literal["model.loaded"]
    model: str
    state: str  # as /ready tells it
    seconds: float
