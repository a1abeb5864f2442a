"""What the routes share: the state, a request's JSON, whether its client is still there, and JSON answers."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from flask import Response, current_app, g, request

from xlaserve.errors import InvalidRequest
from xlaserve.server.errors import ClientGone
from xlaserve.server.json_body import parse_json_object
from xlaserve.server.protocol.generation import REQUEST_ID
from xlaserve.server.responses import Reply
from xlaserve.server.state import ServerState

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService

STATE = "xlaserve"  # keys in app.extensions
KEYS = "xlaserve-keys"


def server_state() -> ServerState:
    return cast(ServerState, current_app.extensions[STATE])


def tenant() -> str:
    """Whose API key the request has; "" where there are none."""
    return g.get("tenant", "")


def needs_key() -> bool:
    """Whether requests must carry an API key."""
    return bool(current_app.extensions[KEYS])


def client_request_id() -> str | None:
    """What the client, or a proxy before it, calls this request, if it can be sent back."""
    name = request.headers.get("X-Request-Id", "")
    return name if re.fullmatch(REQUEST_ID, name) else None


def read_json() -> dict[str, Any]:
    return parse_json_object(request.get_data(), request.headers.get("Content-Type"))


def query() -> dict[str, str]:
    """Of the URL. Raises InvalidRequest for a name that stands twice."""
    twice = next((name for name, values in request.args.lists() if len(values) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"{twice[:80]} stands twice in the URL.", param=twice[:80])
    return request.args.to_dict()


def liveness_check(service: "GenerationService") -> Callable[[], None]:
    """A function that raises when nobody reads the answer or it cannot be finished: ClientGone, EngineUnavailable.

    It may be called outside the request too.
    """
    state = server_state()
    client_gone = request.environ.get("waitress.client_disconnected", lambda: False)

    def check() -> None:
        state.check_running(service)
        if client_gone():
            raise ClientGone

    return check


def model_named(data: dict[str, Any]) -> str | None:
    """By the body of a request. None where there is nothing that can be a name: then that is still to be refused."""
    name = data.get("model")
    return name if isinstance(name, str) else None


def json_response(reply: Reply) -> Response:
    return Response(reply.json_bytes(), mimetype="application/json")
