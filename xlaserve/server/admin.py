"""Orders to the server, for who has its admin key."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from flask import Blueprint, Response, current_app

from xlaserve.engine.model_admin import ModelAdmin
from xlaserve.errors import InvalidRequest
from xlaserve.server.admin_access import AdminAccess
from xlaserve.server.http import json_response, query, read_json, server_state
from xlaserve.server.protocol.loading import LoadedReply
from xlaserve.server.protocol.sleeping import SleepReply, parse_sleep, parse_wake
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


@routes.post("/admin/models/<path:name>/load")
def load(name: str) -> Response:
    """Of a model on demand; answers when it is there."""
    return _come_or_go(name, server_state().models().load)


@routes.post("/admin/models/<path:name>/unload")
def unload(name: str) -> Response:
    """The other way round; answers when its memory is free."""
    return _come_or_go(name, server_state().models().unload)


def _come_or_go(name: str, order: Callable[[str], None]) -> Response:
    started = time.monotonic()
    order(name)
    state, seconds = server_state().models().slot(name).state, round(time.monotonic() - started, 4)
    return json_response(LoadedReply(object="model.loaded", model=name, state=state, seconds=seconds))


@routes.post("/admin/sleep")
def sleep() -> Response:
    """Answers when the memory is free."""
    asked = parse_sleep(query())
    return _each(asked.model, lambda admin: admin.sleep(1 if asked.level == "1" else 2, asked.timeout))


@routes.post("/admin/wake")
def wake() -> Response:
    """Answers when requests are taken again."""
    return _each(parse_wake(query()).model, lambda admin: admin.wake())


def _each(model: str | None, order: Callable[[ModelAdmin], None]) -> Response:
    """Gives the order to the model that is named, or to all, one after the other; to none that is not loaded."""
    started = time.monotonic()
    models = server_state().models()
    models.slot(model)  # refuses one that there is not
    services = [each for each in models if model in (None, each.info.name)]
    for service in services:
        order(_admin(service.admin))
    levels = {service.info.name: service.asleep for service in services}
    seconds = round(time.monotonic() - started, 4)
    return json_response(SleepReply(object="sleep", sleep_levels=levels, seconds=seconds))


def _admin(found: ModelAdmin | None) -> ModelAdmin:
    if found is None:
        raise InvalidRequest("This server's weights are as they are, for as long as it runs.", status=403)
    return found
