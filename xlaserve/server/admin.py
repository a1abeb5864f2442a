"""Orders to the server, for who has its admin key."""

from contextlib import ExitStack

from flask import Blueprint, Response, current_app

from xlaserve.engine.model_admin import ModelAdmin
from xlaserve.errors import InvalidRequest
from xlaserve.server.admin_access import AdminAccess
from xlaserve.server.http import json_response, read_json, server_state
from xlaserve.server.protocol.weights import WeightsReply, parse_weights

routes = Blueprint("admin", __name__)
ADMIN = "xlaserve-admin"  # key in app.extensions


def access() -> AdminAccess:
    return current_app.extensions[ADMIN]


@routes.post("/admin/models/<path:name>/weights")
def weights(name: str) -> Response:
    """Answers when the old weights are gone."""
    asked = parse_weights(read_json())
    path = access().resolve(asked.path)
    with ExitStack() as stack:
        service = server_state().use(name, stack)
        report = _admin(service.admin).swap(path, asked.policy, asked.timeout)
    return json_response(
        WeightsReply(
            object="weights",
            model=service.info.name,
            path=str(path),
            policy=asked.policy,
            weights_version=report.weights_version,
            ended_requests=report.num_ended,
            seconds={part: round(seconds, 4) for part, seconds in report.seconds.items()},
        )
    )


def _admin(found: ModelAdmin | None) -> ModelAdmin:
    if found is None:
        raise InvalidRequest("This server's weights cannot be replaced.", status=403)
    return found
